//! The end of a run that tells what applications leave in their memory.

use super::Stage;
use crate::outcome::RunError;
use crate::outputs::{Outputs, digests};
use crate::player::Player;
use partita_device::{Activity, Device as _};
use partita_model::Nanos;

/// The longest device time for which launches under way are waited for.
const PATIENCE: Nanos = Nanos(1_000_000_000);

impl Stage<'_> {
    /// Whether all applications that have an end have ended, and some have none.
    pub(super) fn has_only_endless(&self) -> bool {
        let mut with_end = self.players.iter().filter(|player| player.left.is_some()).peekable();
        with_end.peek().is_some() && with_end.all(Player::has_ended)
    }

    /// Waits for the launches under way, and digests what they left.
    pub(super) fn end_launches(&mut self) -> Result<(), RunError> {
        let end = self.device.now() + PATIENCE;
        loop {
            for index in 0..self.players.len() {
                let now = self.device.now();
                let Stage { players, replies, .. } = self;
                let has_come = |sequence| replies.remove(&sequence).is_some();
                players[index].await_batches(now, has_come);
            }
            let Some(index) = self.players.iter().position(|player| !player.awaited.is_empty())
            else {
                break;
            };
            if self.advance(end) == Activity::Idle || self.device.now() >= end {
                return Err(self.error(index, "launches never ended after the run".to_owned()));
            }
            if let Some((session, reason)) = self.trouble.take() {
                let index = self.players.iter().position(|player| player.session == session);
                return Err(self.error(index.unwrap_or(0), reason));
            }
        }
        self.digest(|_| true)
    }

    /// Digests what applications left, once each.
    pub(super) fn digest(&mut self, which: impl Fn(&Player<'_>) -> bool) -> Result<(), RunError> {
        let Stage { players, device, .. } = self;
        for player in players.iter_mut().filter(|player| which(player)) {
            if player.outputs.is_none() {
                let digests = digests(device, player.application, &player.places);
                let digests = digests.map_err(|error| RunError {
                    application: player.application.name.clone(),
                    reason: error.to_string(),
                })?;
                player.outputs = Some(Outputs { launches: player.enqueued as u64, digests });
            }
        }
        Ok(())
    }
}
