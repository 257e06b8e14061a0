//! What a price is made of.
