//! Keys in cloud key management services: AWS KMS (moto), and a fake of Google Cloud KMS.

use std::time::Duration;

use gapless_testkit::cloud::{
    AwsKms, AwsUser, CredentialServer, GoogleBehaviour, GoogleKms, REGION, TOKEN_HEAD,
};
use gapless_testkit::{
    Address, Authority, Service, ServiceBuilder, Stack, Submitter, Terminator, TxId, TxState, U256,
    eventually, payload,
};
use serde_json::{Value, json};

use crate::signers::{wait_for_signer, wait_known};
use crate::stack;

/// A table of `[[signer.aws_kms]]`.
fn aws_config(kms: &AwsKms, keys: Value) -> Value {
    json!({ "region": REGION, "endpoint": kms.url(), "keys": keys, "timeout": "5s" })
}

/// A worker with only cloud keys, as this user.
fn aws_worker<'a>(stack: &'a Stack, config: &Value, user: &AwsUser) -> ServiceBuilder<'a> {
    stack
        .worker()
        .only_keys(&[])
        .set("signer.aws_kms", json!([config]))
        .env("AWS_ACCESS_KEY_ID", &user.id)
        .env("AWS_SECRET_ACCESS_KEY", &user.secret)
        // Overrides the environment of the test run.
        .env("AWS_SESSION_TOKEN", "")
}

fn google_worker<'a>(stack: &'a Stack, config: Value) -> ServiceBuilder<'a> {
    stack.worker().only_keys(&[]).set("signer.gcp_kms", json!([config]))
}

async fn fund(stack: &Stack, submitter: &Submitter) {
    stack.anvil().set_balance(submitter.address(), U256::exp10(20)).await;
}

/// Waits until the intent shows that it waits because of `reason`.
async fn wait_because(stack: &Stack, tx_id: TxId, reason: &str) {
    eventually(&format!("{tx_id} waits: {reason}"), async || {
        let row = stack.row(tx_id).await;
        let error = row.last_error.as_deref().unwrap_or_default();
        if row.sub_state.as_deref() == Some("waiting_signer") && error.contains(reason) {
            assert_eq!((row.state, row.nonce), (TxState::Queued, None));
            return Ok(());
        }
        Err(row)
    })
    .await;
    assert!(stack.attempts(tx_id).await.is_empty(), "nothing was signed");
}

/// One transaction of each type, and one with data. Returns their types on chain.
async fn send_each_type(stack: &Stack, submitter: &Submitter) -> Vec<String> {
    let to = Address::repeat_byte(0xc1);
    let list = json!([{ "address": to, "storageKeys": [format!("0x{}", "00".repeat(32))] }]);
    let mut requests = [payload(to, 1), payload(to, 2), payload(to, 3), payload(to, 4)];
    requests[1]["type"] = json!("legacy");
    requests[2]["type"] = json!("legacy");
    requests[2]["accessList"] = list;
    requests[3]["data"] = json!("0x0102");
    let mut tx_ids = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        tx_ids.push(stack.create(submitter, &format!("type-{index}"), request).await);
    }
    stack.wait_confirmed(&tx_ids).await;
    let mined = stack.anvil().mined_from(submitter.address()).await;
    mined.iter().map(|tx| tx["type"].as_str().unwrap_or_default().to_owned()).collect()
}

fn says_nothing_of(worker: &Service, secrets: &[&str]) {
    let log = worker.log();
    for secret in secrets {
        assert!(!log.contains(secret), "a secret is in the log");
    }
}

/// Two keys of AWS KMS, one by alias, are discovered by their public keys; every type of transaction is mined.
/// moto verifies the signature of every request (Signature Version 4) with botocore.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn keys_of_aws_kms_are_found_and_sign_every_type() {
    let stack = stack().start().await;
    stack.start_api().await;
    let Some(kms) = AwsKms::start(stack.dir()).await else { return stack.finish().await };
    let ((one, first), (two, second)) = (kms.create_key().await, kms.create_key().await);
    kms.create_alias("alias/payouts", &two).await;
    for submitter in [&first, &second] {
        fund(&stack, submitter).await;
    }
    let user = kms.create_user("worker").await;
    kms.allow(&user).await;
    let config = aws_config(&kms, json!([{ "id": one }, { "id": "alias/payouts" }]));
    let worker = aws_worker(&stack, &config, &user).start().await;
    assert_eq!(wait_known(&stack, &first).await["signer"], "aws_kms");
    wait_known(&stack, &second).await;

    assert_eq!(send_each_type(&stack, &first).await, ["0x2", "0x0", "0x1", "0x2"]);
    let other = stack.create(&second, "other", &payload(Address::repeat_byte(0xc1), 1)).await;
    assert_eq!(stack.wait_for(other, TxState::Confirmed).await.nonce, Some(0));
    let labels = ["signer=\"aws_kms\"", "result=\"signed\""];
    assert!(worker.metric("gapless_signer_requests_total", &labels).await >= 5.0);
    says_nothing_of(&worker, &[&user.secret]);
    stack.finish().await;
}

/// Two keys of Google Cloud KMS, with a service account key and all checksums that Google requires.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn keys_of_google_cloud_kms_are_found_and_sign_every_type() {
    let stack = stack().submitters(2).start().await;
    stack.start_api().await;
    let kms = GoogleKms::start(stack.submitters(), stack.dir()).await;
    let config = kms.config(json!([{ "id": kms.key(0) }, { "id": kms.key(1) }]));
    let worker = google_worker(&stack, config).start().await;
    assert_eq!(wait_known(&stack, stack.submitter(0)).await["signer"], "gcp_kms");
    wait_known(&stack, stack.submitter(1)).await;

    assert_eq!(send_each_type(&stack, stack.submitter(0)).await, ["0x2", "0x0", "0x1", "0x2"]);
    let other = stack.create(stack.submitter(1), "other", &payload(Address::repeat_byte(0xc1), 1)).await;
    stack.wait_for(other, TxState::Confirmed).await;
    let labels = ["signer=\"gcp_kms\"", "result=\"signed\""];
    assert!(worker.metric("gapless_signer_requests_total", &labels).await >= 5.0);
    says_nothing_of(&worker, &[TOKEN_HEAD, "PRIVATE KEY"]);
    stack.finish().await;
}

/// Scenario 11, with AWS KMS unreachable: work waits without a nonce, other submitters continue, and it continues by
/// itself.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn aws_kms_out_of_reach_delays_and_burns_no_nonce() {
    let stack = stack().start().await;
    stack.start_api().await;
    let Some(kms) = AwsKms::start(stack.dir()).await else { return stack.finish().await };
    let (id, submitter) = kms.create_key().await;
    fund(&stack, &submitter).await;
    let user = kms.create_user("worker").await;
    kms.allow(&user).await;
    let config = aws_config(&kms, json!([{ "id": id, "address": submitter.text() }]));
    let worker = aws_worker(&stack, &config, &user).only_keys(&[0]).start().await;
    let to = Address::repeat_byte(0xc2);
    let first = stack.create(&submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;

    kms.set_reachable(false);
    let waiting = stack.create(&submitter, "waiting", &payload(to, 1)).await;
    wait_for_signer(&stack, waiting).await;
    assert_eq!(stack.cursor(&submitter).await.map(|cursor| cursor.next), Some(1));
    let local = stack.create(stack.submitter(0), "local", &payload(to, 1)).await;
    stack.wait_for(local, TxState::Confirmed).await;
    let labels = ["signer=\"aws_kms\"", "result=\"unavailable\""];
    assert!(worker.metric("gapless_signer_requests_total", &labels).await >= 1.0);

    kms.set_reachable(true);
    assert_eq!(stack.wait_for(waiting, TxState::Confirmed).await.nonce, Some(1));
    stack.finish().await;
}

/// A worker starts while a service is unreachable: configured addresses are announced and wait, addresses that must
/// be queried come later. A key that may not be used does not keep others from being found.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn a_worker_starts_without_its_cloud_and_finds_each_key_by_itself() {
    let stack = stack().submitters(3).start().await;
    stack.start_api().await;
    let kms = GoogleKms::start(stack.submitters(), stack.dir()).await;
    kms.set_behaviour(&GoogleBehaviour::Refusing(503, "UNAVAILABLE"));
    let (listed, asked, denied) = (stack.submitter(0), stack.submitter(1), stack.submitter(2));
    let keys = json!([
        { "id": kms.key(0), "address": listed.text() }, { "id": kms.key(1) }, { "id": kms.key(2) },
    ]);
    let worker = google_worker(&stack, kms.config(keys)).start().await;
    let to = Address::repeat_byte(0xc3);
    let by_listed = stack.create(listed, "listed", &payload(to, 1)).await;
    wait_because(&stack, by_listed, "UNAVAILABLE").await;
    assert_eq!(stack.client().post(asked, "asked", &payload(to, 1)).await.status, 404);

    kms.set_behaviour(&GoogleBehaviour::Honest);
    kms.set_behaviour_of_key(2, GoogleBehaviour::Refusing(403, "PERMISSION_DENIED"));
    wait_known(&stack, asked).await;
    let by_asked = stack.create(asked, "asked", &payload(to, 1)).await;
    stack.wait_confirmed(&[by_listed, by_asked]).await;
    eventually("one key is counted", async || {
        let (status, body) = worker.readiness().await;
        assert_eq!(status, 200, "{body}");
        if body["reasons"]["signer"] == 1 { Ok(()) } else { Err(body) }
    })
    .await;
    // The log says which, and why.
    eventually("the log names it", async || {
        let log = worker.log();
        let named =
            |line: &str| line.contains("signer.gcp_kms.0.keys.2") && line.contains("PERMISSION_DENIED");
        if log.lines().any(named) { Ok(()) } else { Err(log) }
    })
    .await;
    kms.set_behaviour(&GoogleBehaviour::Honest);
    wait_known(&stack, denied).await;
    stack.finish().await;
}

/// An alias that points to another key: its signatures are rejected and never sent, nothing fails, and work continues
/// when the alias is correct again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn a_signature_of_another_key_is_refused_and_never_sent() {
    let stack = stack().start().await;
    stack.start_api().await;
    let Some(kms) = AwsKms::start(stack.dir()).await else { return stack.finish().await };
    let ((one, submitter), (two, _)) = (kms.create_key().await, kms.create_key().await);
    kms.create_alias("alias/payouts", &one).await;
    fund(&stack, &submitter).await;
    let user = kms.create_user("worker").await;
    kms.allow(&user).await;
    let config = aws_config(&kms, json!([{ "id": "alias/payouts" }]));
    let worker = aws_worker(&stack, &config, &user).start().await;
    wait_known(&stack, &submitter).await;
    let to = Address::repeat_byte(0xc4);
    let first = stack.create(&submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;

    kms.point_alias("alias/payouts", &two).await;
    let waiting = stack.create(&submitter, "waiting", &payload(to, 1)).await;
    wait_because(&stack, waiting, "not from the submitter's key").await;
    worker.wait_for_log("signed with another key").await;
    assert!(worker.metric("gapless_signer_requests_total", &["result=\"different\""]).await >= 1.0);
    assert_eq!(stack.anvil().mined_from(submitter.address()).await.len(), 1);

    kms.point_alias("alias/payouts", &one).await;
    assert_eq!(stack.wait_for(waiting, TxState::Confirmed).await.nonce, Some(1));
    stack.finish().await;
}

/// Invalid responses of a service: no nonce is used, nothing is sent, nothing fails, and the intent shows the reason
/// for waiting.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn nonsense_and_refusals_of_a_service_cost_time_and_nothing_else() {
    let stack = stack().start().await;
    stack.start_api().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xc5));
    let kms = GoogleKms::start(stack.submitters(), stack.dir()).await;
    let worker = google_worker(&stack, kms.config(json!([{ "id": kms.key(0) }]))).start().await;
    wait_known(&stack, submitter).await;
    let first = stack.create(submitter, "first", &payload(to, 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;

    kms.set_behaviour(&GoogleBehaviour::Refusing(429, "RESOURCE_EXHAUSTED"));
    let waiting = stack.create(submitter, "waiting", &payload(to, 1)).await;
    for (manner, reason) in [
        (GoogleBehaviour::Refusing(429, "RESOURCE_EXHAUSTED"), "too many requests"),
        (GoogleBehaviour::Refusing(403, "PERMISSION_DENIED"), "this worker may not use the key"),
        (GoogleBehaviour::Refusing(400, "FAILED_PRECONDITION"), "state does not allow signing"),
        (GoogleBehaviour::WithKeyOf(Submitter::random()), "not from the submitter's key"),
        (GoogleBehaviour::WrongChecksum, "signature checksum mismatch"),
        (GoogleBehaviour::Garbage(b"not a signature"), "not from the submitter's key"),
        (GoogleBehaviour::Unverified, "digest checksum not verified"),
    ] {
        kms.set_behaviour(&manner);
        wait_because(&stack, waiting, reason).await;
    }
    assert_eq!(stack.anvil().mined_from(submitter.address()).await.len(), 1);
    assert!(worker.metric("gapless_signer_requests_total", &["result=\"different\""]).await >= 2.0);

    kms.set_behaviour(&GoogleBehaviour::Honest);
    assert_eq!(stack.wait_for(waiting, TxState::Confirmed).await.nonce, Some(1));
    stack.finish().await;
}

/// A worker without permission, with wrong credentials, or with a disabled key: it waits, reports it, and continues
/// when that is fixed. Credentials in a file are replaced while it runs.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn what_aws_denies_is_waited_for_and_rotated_credentials_are_picked_up() {
    let stack = stack().start().await;
    stack.start_api().await;
    let Some(kms) = AwsKms::start(stack.dir()).await else { return stack.finish().await };
    let (id, submitter) = kms.create_key().await;
    fund(&stack, &submitter).await;
    let (allowed, denied) = (kms.create_user("allowed").await, kms.create_user("denied").await);
    kms.allow(&allowed).await;
    let file = stack.dir().join("credentials");
    let write = |id: &str, secret: &str| {
        let text = format!("[worker]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
        std::fs::write(&file, text).unwrap();
    };
    write(&allowed.id, "not-the-secret");
    let mut config = aws_config(&kms, json!([{ "id": id, "address": submitter.text() }]));
    config["credentials"] = json!("file");
    config["credentials_file"] = json!(file.to_str().unwrap());
    config["profile"] = json!("worker");
    let worker = stack.worker().only_keys(&[]).set("signer.aws_kms", json!([config])).start().await;
    let tx_id = stack.create(&submitter, "tx", &payload(Address::repeat_byte(0xc6), 1)).await;
    wait_because(&stack, tx_id, "InvalidSignatureException: the credentials are not accepted").await;
    write(&denied.id, &denied.secret);
    wait_because(&stack, tx_id, "AccessDeniedException: this worker may not use the key").await;
    let line = worker.wait_for_log("User: arn:aws:iam::").await;
    assert!(line.contains("cloud key unavailable"), "{line}");
    let shown = stack.get(tx_id).await.to_string();
    assert!(!shown.contains("arn:aws"), "clients do not read the names of accounts: {shown}");
    kms.set_enabled(&id, false).await;
    write(&allowed.id, &allowed.secret);
    wait_because(&stack, tx_id, "DisabledException: the key is disabled").await;

    kms.set_enabled(&id, true).await;
    assert_eq!(stack.wait_for(tx_id, TxState::Confirmed).await.nonce, Some(0));
    says_nothing_of(&worker, &[&allowed.secret, &denied.secret, "not-the-secret"]);
    stack.finish().await;
}

/// Role credentials from moto's security token service, for a pod token.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn a_web_identity_is_exchanged_for_a_role_that_may_sign() {
    let stack = stack().start().await;
    stack.start_api().await;
    let Some(kms) = AwsKms::start(stack.dir()).await else { return stack.finish().await };
    let (id, submitter) = kms.create_key().await;
    fund(&stack, &submitter).await;
    let role = kms.create_role("worker").await;
    let token = stack.dir().join("token");
    std::fs::write(&token, "a-token-of-a-pod-of-the-tests\n").unwrap();
    let mut config = aws_config(&kms, json!([{ "id": id }]));
    config["credentials"] = json!("web_identity");
    let worker = stack.worker().only_keys(&[]).set("signer.aws_kms", json!([config]));
    let worker = worker
        .env("AWS_ROLE_ARN", &role)
        .env("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap())
        .env("AWS_ENDPOINT_URL_STS", kms.url())
        .start()
        .await;
    wait_known(&stack, &submitter).await;
    let tx_id = stack.create(&submitter, "tx", &payload(Address::repeat_byte(0xc7), 1)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    says_nothing_of(&worker, &["a-token-of-a-pod-of-the-tests"]);
    stack.finish().await;
}

/// Role credentials from the server of a container, from the metadata service of an instance, and from the SDK's chain
/// of sources, here a program that a profile names. Nothing of them is in the log at its most verbose level.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn credentials_of_a_container_an_instance_and_a_profile_sign() {
    let stack = stack().set("log.level", "trace").start().await;
    stack.start_api().await;
    let Some(kms) = AwsKms::start(stack.dir()).await else { return stack.finish().await };
    let (id, submitter) = kms.create_key().await;
    fund(&stack, &submitter).await;
    let credentials = kms.assume_role(&kms.create_role("worker").await).await;
    let server = CredentialServer::start(credentials.clone()).await;
    let (printed, profiles) = (stack.dir().join("printed.json"), stack.dir().join("profiles"));
    let print = json!({
        "Version": 1, "AccessKeyId": credentials.id, "SecretAccessKey": credentials.secret,
        "SessionToken": credentials.token, "Expiration": credentials.expiration,
    });
    std::fs::write(&printed, print.to_string()).unwrap();
    std::fs::write(&profiles, format!("[worker]\ncredential_process = cat {}\n", printed.display())).unwrap();
    let profile = [
        ("AWS_SHARED_CREDENTIALS_FILE", profiles.to_str().unwrap().to_owned()),
        ("AWS_PROFILE", "worker".to_owned()),
        // Overrides the environment of the test run, which the chain would prefer.
        ("AWS_ACCESS_KEY_ID", String::new()),
        ("AWS_SECRET_ACCESS_KEY", String::new()),
    ];
    for (source, environment) in
        [("container", &server.container()[..]), ("instance", &server.instance()), ("default", &profile)]
    {
        let mut config = aws_config(&kms, json!([{ "id": id }]));
        config["credentials"] = json!(source);
        let worker = stack.worker().only_keys(&[]).set("signer.aws_kms", json!([config]));
        let worker =
            environment.iter().fold(worker, |worker, (name, value)| worker.env(name, value)).start().await;
        wait_known(&stack, &submitter).await;
        let tx_id = stack.create(&submitter, source, &payload(Address::repeat_byte(0xca), 1)).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
        worker.stop_sigterm().await;
        says_nothing_of(&worker, &[&credentials.secret, &credentials.token]);
        says_nothing_of(&worker, &server.secrets());
    }
    stack.finish().await;
}

/// Both libraries verify certificates with the TLS cryptography of the program, and with `SSL_CERT_FILE`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn both_services_are_used_over_tls_only_with_a_trusted_certificate() {
    let stack = stack().start().await;
    stack.start_api().await;
    let Some(aws) = AwsKms::start(stack.dir()).await else { return stack.finish().await };
    let (id, in_aws) = aws.create_key().await;
    fund(&stack, &in_aws).await;
    let user = aws.create_user("worker").await;
    aws.allow(&user).await;
    let google = GoogleKms::start(stack.submitters(), stack.dir()).await;
    let (ours, other) = (Authority::new(stack.dir(), "ours"), Authority::new(stack.dir(), "other"));
    let mut aws_config = aws_config(&aws, json!([{ "id": id, "address": in_aws.text() }]));
    let mut google_config =
        google.config(json!([{ "id": google.key(0), "address": stack.submitter(0).text() }]));
    for config in [&mut aws_config, &mut google_config] {
        let plain = config["endpoint"].as_str().unwrap().to_owned();
        let encrypted = Terminator::start(&plain, &ours.issue(&["localhost"])).await;
        config["endpoint"] = json!(encrypted.url("localhost", ""));
    }
    let worker = |trusted: &Authority| {
        aws_worker(&stack, &aws_config, &user)
            .set("signer.gcp_kms", json!([google_config]))
            .env("SSL_CERT_FILE", trusted.file())
    };
    let wary = worker(&other).start().await;
    let mut tx_ids = Vec::new();
    for submitter in [&in_aws, stack.submitter(0)] {
        let tx_id = stack.create(submitter, "tls", &payload(Address::repeat_byte(0xcb), 1)).await;
        wait_because(&stack, tx_id, "certificate").await;
        tx_ids.push(tx_id);
    }
    wary.stop_sigterm().await;
    worker(&ours).start().await;
    stack.wait_confirmed(&tx_ids).await;
    stack.finish().await;
}

/// Scenario 25 with a cloud key: one worker is killed after the signature, one after the commit and one after the
/// send. Each intent has exactly one effect.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn a_worker_with_a_cloud_key_may_die_anywhere() {
    let stack = stack().short_lease().start().await;
    stack.start_api().await;
    let (submitter, to) = (stack.submitter(0), Address::repeat_byte(0xc8));
    let kms = GoogleKms::start(stack.submitters(), stack.dir()).await;
    let config = kms.config(json!([{ "id": kms.key(0), "address": submitter.text() }]));
    let mut tx_ids = Vec::new();
    for (index, point) in ["signed", "committed", "sent"].iter().enumerate() {
        let doomed = google_worker(&stack, config.clone()).failpoint(point).start().await;
        // Announced by the first of these workers.
        tx_ids.push(stack.create(submitter, &format!("r{index}"), &payload(to, 1)).await);
        doomed.wait_exit().await;
        google_worker(&stack, config.clone()).start().await;
        stack.wait_confirmed(&tx_ids).await;
        for worker in stack.workers() {
            worker.kill9();
        }
    }
    let nonces: Vec<_> = stack.rows(submitter).await.iter().map(|row| row.nonce).collect();
    assert_eq!(nonces, [Some(0), Some(1), Some(2)]);
    assert_eq!(stack.anvil().balance(to).await, U256::from(3));
    stack.finish().await;
}

/// Killed and stopped during a call of the service: no database transaction is open, no nonce is used, and the next
/// worker continues.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-ecosystem"]
async fn a_service_that_never_answers_holds_no_database_transaction_and_no_lease() {
    let stack = stack().submitters(2).short_lease().start().await;
    stack.start_api().await;
    let (remote, local, to) = (stack.submitter(0), stack.submitter(1), Address::repeat_byte(0xc9));
    let kms = GoogleKms::start(&stack.submitters()[..1], stack.dir()).await;
    kms.set_behaviour(&GoogleBehaviour::Silent);
    let mut config = kms.config(json!([{ "id": kms.key(0), "address": remote.text() }]));
    config["timeout"] = json!("10m");
    let worker = || google_worker(&stack, config.clone()).only_keys(&[1]);
    let first = worker().start().await;
    let held = stack.create(remote, "held", &payload(to, 1)).await;
    kms.wait_for_sign_request(0).await;
    let free = stack.create(local, "free", &payload(to, 1)).await;
    stack.wait_for(free, TxState::Confirmed).await;
    stack.wait_no_open_transaction().await;
    let row = stack.row(held).await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None));
    let owner = stack.lease(remote).await.and_then(|lease| lease.owner);
    first.kill9();

    let second = worker().start().await;
    stack.wait_owned(remote, owner.as_deref()).await;
    let took = second.stop_sigterm().await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    kms.set_behaviour(&GoogleBehaviour::Honest);
    worker().start().await;
    assert_eq!(stack.wait_for(held, TxState::Confirmed).await.nonce, Some(0));
    stack.finish().await;
}
