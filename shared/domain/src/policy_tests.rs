use super::*;

const TRANSFER: Selector = [0xa9, 0x05, 0x9c, 0xbb];

fn submitter() -> Address {
    Address::repeat_byte(1)
}

fn token() -> Address {
    Address::repeat_byte(2)
}

fn payload(to: Option<Address>, value: impl Into<U256>, data: &[u8]) -> Payload {
    Payload { to, data: data.to_vec().into(), ..Payload::transfer(token(), value.into()) }
}

fn only(selectors: &[Selector], plain: bool) -> Policy {
    let calls = Calls::Only { selectors: selectors.iter().copied().collect(), plain };
    Policy { allow: Some(BTreeMap::from([(token(), calls)])), ..Policy::default() }
}

fn broken(policy: &Policy, payload: &Payload) -> Option<Rule> {
    policy.check(submitter(), payload).err().map(|breach| breach.rule)
}

#[test]
fn only_a_listed_selector_of_a_listed_contract_is_allowed() {
    let policy = only(&[TRANSFER], false);
    let call = [&TRANSFER[..], &[0; 64]].concat();
    assert_eq!(broken(&policy, &payload(Some(token()), 0, &call)), None);
    assert_eq!(broken(&policy, &payload(Some(token()), 0, &TRANSFER)), None, "without arguments");
    for (to, data) in [
        (token(), &[0x09, 0x5e, 0xa7, 0xb3][..]),
        (token(), &[0xa9, 0x05, 0x9c][..]),
        (token(), &[][..]),
        (Address::repeat_byte(3), &call[..]),
        (submitter(), &call[..]),
    ] {
        assert_eq!(broken(&policy, &payload(Some(to), 0, data)), Some(Rule::Allow), "{to:?} {data:?}");
    }
}

#[test]
fn a_plain_transfer_is_allowed_if_listed_and_short_data_only_with_any() {
    let plain = only(&[], true);
    assert_eq!(broken(&plain, &payload(Some(token()), 5, &[])), None);
    assert_eq!(broken(&plain, &payload(Some(token()), 5, &[0])), Some(Rule::Allow));
    assert_eq!(broken(&plain, &payload(Some(token()), 5, &TRANSFER)), Some(Rule::Allow));
    let any = Policy { allow: Some(BTreeMap::from([(token(), Calls::Any)])), ..Policy::default() };
    for data in [&[][..], &[0], &[0, 0, 0], &TRANSFER] {
        assert_eq!(broken(&any, &payload(Some(token()), 5, data)), None, "{data:?}");
    }
}

#[test]
fn a_deployment_is_refused_unless_enabled() {
    let deployment = payload(None, 0, &[0x60, 0x80, 0x60, 0x40]);
    let capped = Policy { max_value: Some(1.into()), ..Policy::default() };
    assert_eq!(broken(&capped, &deployment), Some(Rule::Deploy));
    assert_eq!(broken(&only(&[TRANSFER], false), &deployment), Some(Rule::Deploy));
    let open = Policy { deploy: true, ..only(&[TRANSFER], false) };
    assert_eq!(broken(&open, &deployment), None);
    let endowed = Policy { deploy: true, ..capped };
    assert_eq!(broken(&endowed, &payload(None, 2, &[0x60])), Some(Rule::MaxValue));
}

#[test]
fn only_a_real_placeholder_is_allowed_by_every_policy() {
    let strictest = Policy {
        allow: Some(BTreeMap::new()),
        deploy: false,
        max_value: Some(U256::zero()),
        max_value_per_day: Some(U256::zero()),
    };
    assert_eq!(broken(&strictest, &payload(Some(submitter()), 0, &[])), None);
    assert_eq!(broken(&strictest, &payload(Some(submitter()), 1, &[])), Some(Rule::Allow));
    assert_eq!(broken(&strictest, &payload(Some(submitter()), 0, &[0])), Some(Rule::Allow));
    assert_eq!(broken(&strictest, &payload(Some(token()), 0, &[])), Some(Rule::Allow));
}

#[test]
fn a_value_may_reach_but_not_exceed_its_limit() {
    let policy = Policy { max_value: Some(10.into()), ..Policy::default() };
    assert_eq!(broken(&policy, &payload(Some(token()), 10, &[])), None);
    assert_eq!(broken(&policy, &payload(Some(token()), 11, &[])), Some(Rule::MaxValue));
    let nothing = Policy { max_value: Some(U256::zero()), ..Policy::default() };
    assert_eq!(broken(&nothing, &payload(Some(token()), 0, &TRANSFER)), None);
    assert_eq!(broken(&nothing, &payload(Some(token()), 1, &[])), Some(Rule::MaxValue));
    let all = Policy { max_value: Some(U256::MAX), ..Policy::default() };
    assert_eq!(broken(&all, &payload(Some(token()), U256::MAX, &[])), None);
}

#[test]
fn the_daily_sum_may_reach_but_not_exceed_its_limit() {
    let policy = Policy { max_value_per_day: Some(100.into()), ..Policy::default() };
    let of = |value: u64| payload(Some(token()), value, &[]);
    assert_eq!(policy.check_day(&of(40), 60.into()), Ok(()));
    let breach = policy.check_day(&of(41), 60.into()).unwrap_err();
    assert_eq!((breach.value, breach.spent, breach.limit), (41.into(), Some(60.into()), Some(100.into())));
    assert_eq!(policy.check_day(&of(0), 100.into()), Ok(()), "no value, nothing counted");
    assert_eq!(policy.check_day(&of(0), 200.into()), Ok(()), "the limit was lowered in the meantime");
    assert!(policy.check_day(&of(1), 200.into()).is_err());
    assert_eq!(broken(&policy, &of(101)), Some(Rule::MaxValuePerDay), "above the daily limit by itself");
    assert_eq!(Policy::default().check_day(&of(1), U256::MAX), Ok(()), "there is no such rule");
}

#[test]
fn a_sum_beyond_256_bits_exceeds_every_limit() {
    let policy = Policy { max_value_per_day: Some(U256::MAX), ..Policy::default() };
    let of = |value: U256| payload(Some(token()), value, &[]);
    assert_eq!(policy.check_day(&of(U256::MAX), U256::zero()), Ok(()));
    assert_eq!(policy.check_day(&of(U256::one()), U256::MAX - 1), Ok(()));
    assert!(policy.check_day(&of(U256::one()), U256::MAX).is_err());
    assert!(policy.check_day(&of(U256::MAX), U256::one()).is_err());
    assert!(policy.check_day(&of(U256::MAX), U256::MAX).is_err());
}

#[test]
fn a_breach_describes_the_request() {
    let call = only(&[], true).check(submitter(), &payload(Some(token()), 0, &TRANSFER)).unwrap_err();
    let error = call.error();
    assert_eq!(error.code, ErrorCode::CallNotAllowed);
    assert!(error.message.contains("0xa9059cbb") && error.message.contains(&format!("{:#x}", token())));
    let rules = [Rule::Allow, Rule::Deploy, Rule::MaxValue, Rule::MaxValuePerDay];
    let codes: BTreeSet<&str> = rules.iter().map(|rule| rule.code().as_str()).collect();
    assert_eq!(codes.len(), rules.len());
}
