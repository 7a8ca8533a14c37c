//! Looking at the daemon: what is published of its GPUs, and how they are.

use crate::driver::Driver;
use crate::slice::{self, Publisher};
use k8s_openapi::api::resource::v1::Device;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch::Sender;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_secs(2);
/// How long a published slice and the reservations are taken to be as they were.
const AGAIN: Duration = Duration::from_secs(30);

/// How the devices are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// The daemon answers.
    Good,
    /// It does not.
    Bad,
}

/// What is known of the node.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its devices, once they have been seen.
    pub devices: Option<Vec<Device>>,
    /// How they are.
    pub health: Health,
    /// Why they are not well.
    pub message: String,
    /// When the daemon was asked, in seconds since 1970.
    pub seen: i64,
}

impl Node {
    /// A node of which nothing is known.
    #[must_use]
    pub fn new(name: &str) -> Node {
        let message = "partitad has not been asked yet".into();
        Node { name: name.into(), devices: None, health: Health::Bad, message, seen: 0 }
    }

    /// The names of its devices.
    #[must_use]
    pub fn device_names(&self) -> Vec<String> {
        self.devices.iter().flatten().map(|device| device.name.clone()).collect()
    }
}

/// Looks at the daemon for ever, publishes what it sees, and renews reservations.
pub async fn watch(driver: Arc<Driver>, publisher: Publisher, state: Sender<Node>) {
    let mut published: Option<(Vec<Device>, Instant)> = None;
    let mut reconciled: Option<Instant> = None;
    let mut complaint = String::new();
    loop {
        let is_good = look(&driver, &publisher, &state).await;
        let wanted = wanted(&state.borrow(), &publisher);
        if let Some(wanted) = wanted {
            let is_known = published
                .as_ref()
                .is_some_and(|(devices, at)| *devices == wanted && at.elapsed() < AGAIN);
            if !is_known {
                match publisher.publish(&wanted).await {
                    Ok(changed) => {
                        if changed {
                            tracing::info!(
                                devices = wanted.len(),
                                "the ResourceSlice is published"
                            );
                        }
                        complaint.clear();
                        published = Some((wanted, Instant::now()));
                    }
                    Err(error) => complain(&mut complaint, &error.to_string()),
                }
            }
        }
        if !is_good {
            // What the daemon has lost is made anew as soon as it is back.
            reconciled = None;
        } else if reconciled.is_none_or(|at| at.elapsed() > AGAIN) {
            match driver.reconcile().await {
                Ok(count) => {
                    if count > 0 {
                        tracing::info!(count, "reservations are made anew or renewed");
                    }
                    reconciled = Some(Instant::now());
                }
                Err(error) => tracing::debug!(%error, "reservations cannot be compared"),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Asks the daemon once. Whether it has answered.
async fn look(driver: &Driver, publisher: &Publisher, state: &Sender<Node>) -> bool {
    let seen = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seen = i64::try_from(seen).unwrap_or(i64::MAX);
    let found = driver.partitad().gpus().await;
    let before = state.borrow().clone();
    let mut node = match found {
        Ok(gpus) => Node {
            devices: Some(slice::devices(&gpus)),
            health: Health::Good,
            message: String::new(),
            ..before.clone()
        },
        Err(error) => {
            let message = error.to_string();
            Node { health: Health::Bad, message, ..before.clone() }
        }
    };
    if node.devices.is_none() {
        // What an earlier driver has published holds until the daemon answers.
        node.devices = publisher.published().await.ok().flatten();
    }
    let is_good = node.health == Health::Good;
    if node.health != before.health || before.seen == 0 {
        match is_good {
            true => tracing::info!("partitad answers"),
            false => tracing::warn!(reason = node.message, "partitad does not answer"),
        }
    }
    node.seen = seen;
    state.send_replace(node);
    is_good
}

fn wanted(node: &Node, publisher: &Publisher) -> Option<Vec<Device>> {
    let devices = node.devices.as_ref()?;
    Some(match node.health {
        Health::Good => devices.clone(),
        Health::Bad => slice::tainted(devices, publisher.driver()),
    })
}

/// Says it once.
fn complain(before: &mut String, error: &str) {
    if before != error {
        tracing::warn!(error, "the ResourceSlice cannot be published");
        error.clone_into(before);
    }
}
