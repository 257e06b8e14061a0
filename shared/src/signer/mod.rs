//! Placeholder filled below.
