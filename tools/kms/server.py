"""AWS KMS for the tests: moto's server on a free port of this machine.

moto hashes what it is told to be a digest once more (MessageType DIGEST), signs with disabled keys, and refuses in
other words than AWS; all of that is mended here. What is asked for without DIGEST is refused: hashed by the service, it
would be no signature of a transaction.

What a worker asks needs a right signature (Signature Version 4, computed anew by botocore) of a user whose policy allows
it. The tests themselves, who make keys and users, call themselves `the-tests` and need neither.
"""

import threading

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from moto import settings
from moto.core.authorization import ActionAuthenticatorMixin
from moto.core.exceptions import (
    AccessDeniedError,
    InvalidClientTokenIdError,
    JsonRESTError,
    SignatureDoesNotMatchError,
)
from moto.kms.exceptions import ValidationException
from moto.kms.responses import KmsResponse
from moto.kms.utils import ECDSAPrivateKey
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

WORDS_OF_AWS = {
    AccessDeniedError: "AccessDeniedException",
    InvalidClientTokenIdError: "UnrecognizedClientException",
    SignatureDoesNotMatchError: "InvalidSignatureException",
}

_asked = threading.local()
_answer_sign = KmsResponse.sign
_authorize = ActionAuthenticatorMixin._authenticate_and_authorize_normal_action


def _authorize_others(response, resource="*"):
    # What a role is asked for with is its token, not a signature.
    if response._get_action() == "AssumeRoleWithWebIdentity":
        return
    authorization = response.headers.get("Authorization", "")
    if "Credential=the-tests/" in authorization:
        return
    if not authorization:
        raise JsonRESTError("MissingAuthenticationTokenException", "the request is not signed")
    try:
        _authorize(response, resource)
    except tuple(WORDS_OF_AWS) as refusal:
        raise JsonRESTError(WORDS_OF_AWS[type(refusal)], refusal.message)


def _sign_with_enabled_keys(response):
    key_id = response._get_param("KeyId")
    response._validate_key_id(key_id)
    key = response.kms_backend.describe_key(key_id)
    if not key.enabled:
        raise JsonRESTError("DisabledException", f"{key.arn} is disabled.")
    _asked.message_type = response._get_param("MessageType")
    return _answer_sign(response)


def _sign_digest(key, message, signing_algorithm):
    if _asked.message_type != "DIGEST" or signing_algorithm != "ECDSA_SHA_256":
        raise ValidationException("the tests sign digests with ECDSA_SHA_256")
    if len(message) != 32:
        raise ValidationException("Digest is invalid length for algorithm ECDSA_SHA_256.")
    return key.private_key.sign(message, ec.ECDSA(utils.Prehashed(hashes.SHA256())))


settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
ActionAuthenticatorMixin._authenticate_and_authorize_normal_action = _authorize_others
KmsResponse.sign = _sign_with_enabled_keys
ECDSAPrivateKey.sign = _sign_digest

server = make_server(
    "127.0.0.1",
    0,
    DomainDispatcherApplication(create_backend_app),
    threaded=True,
    request_handler=MotoRequestHandler,
)
print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
