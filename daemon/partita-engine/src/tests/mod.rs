//! The engine against a device that a test can script.

mod alone;
mod clusters;
mod copies;
mod effects;
pub(crate) mod fake_device;
mod fences;
mod groups;
mod messages;
mod modules;
mod originals;
mod phases;
mod policy;
mod processes;
mod profiling;
pub(crate) mod random;
mod requests;
mod resize;
mod sharing;
mod slices;
mod streams;
mod terms;
mod tickets;
mod turns;
mod watchdog;
mod world;
