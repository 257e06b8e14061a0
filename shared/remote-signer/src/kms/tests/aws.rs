use super::*;

#[tokio::test]
async fn requests_match_the_documented_api() {
    let tx = each_type()[2].clone();
    let digest = STANDARD.encode(tx.typed().sighash());
    let fake = service(honest).await;
    signer(key_of("aws_kms", &fake)).sign(&tx).await.unwrap();
    let asked = fake.seen().remove(0);
    assert_eq!(asked.line, "POST /");
    assert_eq!(asked.header("x-amz-target"), Some("TrentService.Sign"));
    assert_eq!(asked.header("content-type"), Some("application/x-amz-json-1.1"));
    assert_eq!(asked.header("x-amz-security-token"), Some("the-session"));
    let authorization = asked.header("authorization").unwrap();
    let day = &asked.header("x-amz-date").unwrap()[..8];
    let scope = format!("Credential=AKIDEXAMPLE/{day}/eu-central-1/kms/aws4_request, ");
    assert!(authorization.contains(&scope), "{authorization}");
    let names = "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target, ";
    assert!(authorization.contains(names), "{authorization}");
    let body = json!({
        "KeyId": "alias/a", "Message": digest, "MessageType": "DIGEST", "SigningAlgorithm": "ECDSA_SHA_256",
    });
    assert_eq!(asked.body, body);
}

#[tokio::test]
async fn keys_of_other_curves_are_rejected() {
    let p256 = "3059301306072a8648ce3d020106082a8648ce3d030107034200";
    let other = [hex::decode(p256).unwrap(), vec![4; 65]].concat();
    let answer = json!({ "KeySpec": "ECC_NIST_P256", "PublicKey": STANDARD.encode(other) }).to_string();
    let fake = service(move |_| Act::Answer(200, answer.clone())).await;
    let reason = key_of("aws_kms", &fake).addresses().await.unwrap_err();
    assert!(reason.contains("secp256k1"), "{reason}");
}

#[tokio::test]
async fn a_wrong_clock_is_corrected_by_the_date_of_the_service() {
    let theirs = chrono::Utc::now() - chrono::TimeDelta::hours(3);
    let fake = service(move |asked| {
        let dated = asked.header("x-amz-date").unwrap();
        let dated = chrono::NaiveDateTime::parse_from_str(dated, "%Y%m%dT%H%M%SZ").unwrap();
        match (dated.and_utc() - theirs).num_minutes().abs() < 5 {
            true => honest(asked),
            false => {
                let said = json!({ "__type": "InvalidSignatureException", "message": "not yet current" });
                Act::AnswerAt(theirs, 400, said.to_string())
            }
        }
    })
    .await;
    let signer = signer(key_of("aws_kms", &fake));
    let tx = each_type()[2].clone();
    assert!(matches!(signer.sign(&tx).await, Err(SignerError::Unavailable { .. })));
    signer.sign(&tx).await.unwrap();
}
