//! Deserialises strings that may look like numbers. Environment variables are untyped: the value of
//! `GAPLESS__API__ADMIN_TOKEN=12345` is parsed as a number, and a type error would print the secret.

use std::fmt;

use serde::de::{Deserializer, Visitor};

pub(super) fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(TextOrNumber)
}

struct TextOrNumber;

impl Visitor<'_> for TextOrNumber {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_u128<E>(self, number: u128) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i128<E>(self, number: i128) -> Result<String, E> {
        Ok(number.to_string())
    }
}
