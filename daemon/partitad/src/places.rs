//! Places at a socket: how many connections each user has, and all users together.
//!
//! Invariant: root and the daemon's own user have places that nobody else can take.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The numbers of places.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of all users but root and the daemon's own.
    pub all: usize,
    /// Of one of these users.
    pub user: usize,
    /// Of root, and of the daemon's own user, each; beside `all`.
    pub admin: usize,
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// The user has as many as it may have.
    User {
        /// That many.
        most: usize,
    },
    /// All places of users are taken.
    All {
        /// That many.
        most: usize,
    },
}

/// The places at one socket.
#[derive(Debug)]
pub struct Places {
    limits: Limits,
    /// The daemon's own user.
    admin: u32,
    taken: Mutex<Taken>,
}

#[derive(Default, Debug)]
struct Taken {
    /// Places of all users but root and the daemon's own.
    ordinary: usize,
    /// Places of each user that has one; `None` is a user that the system does not report.
    of: HashMap<Option<u32>, usize>,
}

impl Places {
    /// Places that are free; `admin` is the daemon's own user.
    #[must_use]
    pub fn new(limits: Limits, admin: u32) -> Arc<Places> {
        Arc::new(Places { limits, admin, taken: Mutex::default() })
    }

    /// Takes a place for a user.
    ///
    /// # Errors
    /// [`Full`].
    pub fn take(self: &Arc<Self>, uid: Option<u32>) -> Result<Place, Full> {
        let is_ordinary = uid != Some(0) && uid != Some(self.admin);
        let most = if is_ordinary { self.limits.user } else { self.limits.admin };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.of.get(&uid).is_some_and(|places| *places >= most) {
            return Err(Full::User { most });
        }
        if is_ordinary && taken.ordinary >= self.limits.all {
            return Err(Full::All { most: self.limits.all });
        }
        *taken.of.entry(uid).or_default() += 1;
        taken.ordinary += usize::from(is_ordinary);
        Ok(Place { places: Arc::clone(self), uid, is_ordinary })
    }
}

/// One place; dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    uid: Option<u32>,
    is_ordinary: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.ordinary -= usize::from(self.is_ordinary);
        if let Some(places) = taken.of.get_mut(&self.uid) {
            *places -= 1;
            if *places == 0 {
                taken.of.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_daemons_user_have_their_own() {
        let places = Places::new(Limits { all: 3, user: 2, admin: 2 }, 990);
        let take = |uid: u32| places.take(Some(uid));
        let held = [take(1).unwrap(), take(1).unwrap()];
        assert_eq!(take(1).unwrap_err(), Full::User { most: 2 });
        let other = take(2).unwrap();
        assert_eq!(take(2).unwrap_err(), Full::All { most: 3 });
        assert_eq!(places.take(None).unwrap_err(), Full::All { most: 3 });
        let admins = [take(0).unwrap(), take(0).unwrap(), take(990).unwrap()];
        assert_eq!(take(0).unwrap_err(), Full::User { most: 2 });
        drop(held);
        let again = [take(2).unwrap(), take(1).unwrap()];
        drop((other, admins, again));
        assert!(places.taken.lock().unwrap().of.is_empty());
        assert_eq!(places.taken.lock().unwrap().ordinary, 0);
    }
}
