use super::*;

fn reason(policy: &AddressPolicy, address: &str) -> Option<RefusedReason> {
    let address: IpAddr = address.parse().unwrap();
    policy.check(address).err().map(|refused| {
        assert_eq!(refused.address, address);
        refused.reason
    })
}

#[test]
fn every_special_range_is_refused_from_its_first_to_its_last_address() {
    use RefusedReason::*;
    let policy = AddressPolicy::default();
    for (addresses, expected) in [
        ("0.0.0.0 ::", Unspecified),
        ("0.0.0.1 0.255.255.255", ThisNetwork),
        ("127.0.0.1 127.0.0.0 127.255.255.255 ::1", Loopback),
        ("10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255", Private),
        ("100.64.0.0 100.100.100.200 100.127.255.255", Shared),
        ("169.254.0.0 169.254.169.254 169.254.255.255 fe80::1 febf:ffff::1", LinkLocal),
        ("fc00:: fd00:ec2::254 fdff:ffff::1", UniqueLocal),
        ("fec0::1 feff:ffff::1", SiteLocal),
        ("192.0.0.0 192.0.0.192 192.0.0.255 2001:1::1 2001:1ff:ffff::1", ProtocolAssignment),
        ("192.0.2.1 198.51.100.1 203.0.113.255 2001:db8::1 3fff::1 3fff:fff::1", Documentation),
        ("198.18.0.0 198.19.255.255 2001:2::1", Benchmarking),
        ("168.63.129.16", CloudPlatform),
        ("224.0.0.1 239.255.255.255 ff02::1 ffff::1", Multicast),
        ("255.255.255.255", Broadcast),
        ("240.0.0.0 255.255.255.254 192.88.99.1 4000::1 5f00::1 200::1 fe00::1 64:ff9c::1", Reserved),
        ("64:ff9b:1:: 64:ff9b:1:ffff::808:808", LocalTranslation),
        ("2001:: 2001:0:4136:e378:8000:63bf:3fff:fdd2", Teredo),
        ("100:: 100::ffff:ffff:ffff:ffff", Discard),
    ] {
        for address in addresses.split(' ') {
            assert_eq!(reason(&policy, address), Some(expected), "{address}");
        }
    }
}

#[test]
fn public_addresses_are_accepted_also_next_to_special_ranges() {
    let policy = AddressPolicy::default();
    for address in
        "1.0.0.0 1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 \
        128.0.0.0 168.63.129.15 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 \
        192.0.1.0 192.0.3.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.101.0 203.0.114.0 \
        223.255.255.255 2000::1 2001:200::1 2001:4860:4860::8888 2606:4700:4700::1111 2003::1 3ffe::1"
            .split_whitespace()
    {
        assert_eq!(reason(&policy, address), None, "{address}");
    }
}

#[test]
fn an_embedded_ipv4_address_counts() {
    let policy = AddressPolicy::default();
    for (embedded, hex, expected) in [
        ("127.0.0.1", "7f00:1", Some(RefusedReason::Loopback)),
        ("10.1.2.3", "a01:203", Some(RefusedReason::Private)),
        ("169.254.169.254", "a9fe:a9fe", Some(RefusedReason::LinkLocal)),
        ("8.8.8.8", "808:808", None),
    ] {
        let forms = [
            format!("::ffff:{embedded}"),
            format!("::ffff:{hex}"),
            format!("::ffff:0:{embedded}"),
            format!("::{embedded}"),
            format!("64:ff9b::{embedded}"),
            format!("2002:{hex}::1"),
        ];
        for form in forms {
            assert_eq!(reason(&policy, &form), expected, "{form}");
        }
    }
}

#[test]
fn allowed_addresses_and_networks_override_the_refusal() {
    let policy = AddressPolicy::parse(&["10.1.0.0/16", "127.0.0.1", "fd00::/8", "64:ff9b:1::/48"]).unwrap();
    for address in [
        "10.1.2.3",
        "127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.1.0.1",
        "fd00:1::1",
        "64:ff9b:1::1",
        "8.8.8.8",
    ] {
        assert_eq!(reason(&policy, address), None, "{address}");
    }
    for (address, expected) in [
        ("10.2.0.0", RefusedReason::Private),
        ("127.0.0.2", RefusedReason::Loopback),
        ("::1", RefusedReason::Loopback),
        ("fc00::1", RefusedReason::UniqueLocal),
        ("169.254.169.254", RefusedReason::LinkLocal),
    ] {
        assert_eq!(reason(&policy, address), Some(expected), "{address}");
    }
    let everything = AddressPolicy::parse(&["0.0.0.0/0", "::/0"]).unwrap();
    assert_eq!(reason(&everything, "127.0.0.1"), None);
    assert_eq!(reason(&everything, "::1"), None);
}

#[test]
fn an_invalid_entry_is_named() {
    for entry in ["", "localhost", "10.0.0.0/33", "10.0.0/8", "10.0.0.1:80", " 10.0.0.0/8", "::/129"] {
        let error = AddressPolicy::parse(&["127.0.0.1", entry]).unwrap_err();
        assert_eq!(error, InvalidAllow::Syntax(entry.to_owned()));
    }
    let error = AddressPolicy::parse(&["10.1.2.3/8"]).unwrap_err();
    assert_eq!(error.to_string(), "`10.1.2.3/8` has address bits after its prefix; write 10.0.0.0/8");
}

#[test]
fn literal_hosts_are_checked_and_names_pass() {
    let policy = AddressPolicy::default();
    for (url, expected) in [
        ("http://2130706433/", Some(RefusedReason::Loopback)),
        ("http://0x7f.1/", Some(RefusedReason::Loopback)),
        ("http://127.0.0.1:8080/", Some(RefusedReason::Loopback)),
        ("http://[::ffff:127.0.0.1]/", Some(RefusedReason::Loopback)),
        ("http://[::]/", Some(RefusedReason::Unspecified)),
        ("http://0/", Some(RefusedReason::Unspecified)),
        ("http://169.254.169.254/latest/meta-data", Some(RefusedReason::LinkLocal)),
        ("http://1.1.1.1/", None),
        ("http://localhost/", None),
    ] {
        let outcome = policy.check_literal(&TargetUrl::parse(url).unwrap());
        assert_eq!(outcome.err().map(|refused| refused.reason), expected, "{url}");
    }
}

#[test]
fn a_refusal_names_address_and_reason() {
    let refused = AddressPolicy::default().check("10.0.0.1".parse().unwrap()).unwrap_err();
    assert_eq!(refused.to_string(), "10.0.0.1 is not allowed: private address");
}
