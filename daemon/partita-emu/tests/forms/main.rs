//! Every form of rewritten kernels, executed: the same results as the original's, and nothing lost
//! or done twice whatever the moment at which the launch is disturbed.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers, and random bits")]

mod cancel;
mod count;
mod device;
mod fence;
mod parts;
mod places;
mod replay;
mod settle;
mod slice;
mod ticket;
mod trial;
mod weak;
mod world;
