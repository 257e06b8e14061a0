//! The steps. Every state has exactly one that moves it on:
//!
//! | state | step |
//! |---|---|
//! | QUEUED | `prepare` |
//! | IN_FLIGHT, SUBMITTED, STUCK | `submit` (bytes to the node), until `track` hears of a block |
//! | TRACKING | `track` |
//! | PROTECT | `protect` (watches), `operator` (releases) |

pub(crate) mod operator;
pub(crate) mod prepare;
pub(crate) mod protect;
pub(crate) mod submit;
pub(crate) mod track;
