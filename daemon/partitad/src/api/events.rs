//! `GET /v1/events`: server-sent events.
//!
//! Administrators get every event. Every other user gets those of its own applications in full,
//! and an event `others` with sums where those of other users come, go or get other SMs.
//!
//! The first event is `hello`: its id is where the reader begins. An event `lagged` means that
//! events are missing: what follows is complete again, and the state has to be read anew. A reader
//! that goes on after an event gets `up_to_date` behind all that was remembered.

use super::{Api, Asked, Caller, Of, Sight};
use crate::connections::Seat;
use crate::events::{Next, Reading, Told};
use crate::places::Full;
use crate::problem::Problem;
use crate::view::names_only;
use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;
use partita_model::{EventItem, GpuNumber, Happening, OthersItem, TenantId};
use serde_json::json;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// A reader to which nothing is sent for so long gets a comment: a connection that has ended is
/// found out by it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Comings, goings, borders, decisions, faults and stuck launches, as server-sent events.
///
/// The field `event` of each has the kind, and `data` has the event as JSON. `Last-Event-ID` goes
/// on after that event; `0` stands before all that is remembered.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "events",
    params(
        Of,
        ("Last-Event-ID" = Option<String>, Header, description = "the last event that was read")
    ),
    responses(
        (status = OK, body = EventItem, content_type = "text/event-stream",
            description = "events without end; `others` has an `OthersItem` as its data, `hello` \
                the daemon's version, `lagged` the number of missing events, 0 for unknown; \
                `up_to_date` follows what was remembered")
    )
)]
pub(super) async fn events(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    seat: Option<Extension<Seat>>,
    headers: HeaderMap,
    asked: Asked,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let gpu = api.asked(asked)?.map(|gpu| gpu.number);
    let place = api.readers.take(caller.uid).map_err(refusal)?;
    // The connection no longer counts as a short request.
    if let Some(Extension(seat)) = seat {
        seat.leave();
    }
    let after = headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default());
    let reading = api.hub.read(after).await;
    let reader = Reader {
        api,
        reading,
        gpu,
        sight: caller.sight(),
        greeted: false,
        catches_up: after.is_some(),
        others: BTreeMap::new(),
    };
    let stream = unfold((reader, place), async |(mut reader, place)| {
        let event = reader.next().await?;
        Some((Ok(event), (reader, place)))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

fn refusal(full: Full) -> Problem {
    match full {
        Full::User { most } => Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!("you read events {most} times already, and no user may more often: end some"),
        ),
        Full::All { most } => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("all {most} places of readers of events are taken: try again later"),
        ),
    }
}

/// One reader.
struct Reader {
    api: Api,
    reading: Reading,
    /// The only GPU that is read.
    gpu: Option<GpuNumber>,
    sight: Sight,
    greeted: bool,
    /// Whether it has to hear when it has all that was remembered.
    catches_up: bool,
    /// The sums that were told last.
    others: BTreeMap<GpuNumber, OthersItem>,
}

impl Reader {
    async fn next(&mut self) -> Option<Event> {
        if !self.greeted {
            self.greeted = true;
            let data = json!({"version": env!("CARGO_PKG_VERSION")});
            return Some(self.event("hello", self.reading.last(), &data.to_string()));
        }
        loop {
            if self.catches_up && self.reading.is_up_to_date() {
                self.catches_up = false;
                return Some(self.event("up_to_date", self.reading.last(), "{}"));
            }
            let event = match self.reading.next().await? {
                Next::Lagged(missed) => {
                    self.others.clear();
                    let data = json!({"missed": missed}).to_string();
                    Some(self.event("lagged", self.reading.last(), &data))
                }
                Next::Event(told) => self.seen(&told),
            };
            if event.is_some() {
                return event;
            }
        }
    }

    fn event(&self, kind: &str, number: u64, data: &str) -> Event {
        Event::default().event(kind).id(self.api.hub.id(number)).data(data)
    }

    /// An event as the reader may see it.
    fn seen(&mut self, told: &Arc<Told>) -> Option<Event> {
        let EventItem { gpu, event } = &told.item;
        if self.gpu.is_some_and(|only| only != *gpu) {
            return None;
        }
        let whole = || self.event(event.what.kind(), told.number, &told.text);
        match (self.sight, &event.what) {
            (Sight::All, _) | (_, Happening::Restarted { .. }) => Some(whole()),
            (Sight::Own(own), Happening::Decision { .. }) => self.own_reasons(told, own),
            (Sight::Own(own), _) if event.tenant == Some(own) => Some(whole()),
            (Sight::Own(own), _) => {
                let sums = self.api.hub.others(*gpu, own);
                let is_new = self.others.insert(*gpu, sums) != Some(sums);
                let data = serde_json::to_string(&sums).unwrap_or_default();
                is_new.then(|| self.event("others", told.number, &data))
            }
        }
    }

    /// A decision with the reasons that name no application of others.
    fn own_reasons(&self, told: &Told, own: TenantId) -> Option<Event> {
        let mut item = told.item.clone();
        let ids = self.api.hub.own(item.gpu, own);
        let Happening::Decision { why, .. } = &mut item.event.what else { return None };
        why.retain(|sentence| names_only(sentence, &ids));
        let names_own = why.iter().any(|sentence| sentence.contains("application "));
        let data = serde_json::to_string(&item).unwrap_or_default();
        names_own.then(|| self.event("decision", told.number, &data))
    }
}
