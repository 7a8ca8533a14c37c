//! Programs that become another user.

use super::super::users::open_daemon;
use super::{Client, survive_on};
use partita_client::Session;
use partita_model::TenantId;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

#[test]
fn setuid_after_connect() {
    let Some(daemon) = open_daemon(&[]) else { return };
    // Root stays the saved user, so that this thread can change its user again.
    let become_user = |uid| {
        let (user, root) = (Uid::from_raw(uid), Uid::ROOT);
        set_thread_res_uid(root, root, root).unwrap();
        set_thread_res_uid(user, user, root).unwrap();
    };
    survive_on(&daemon, |daemon| {
        let sockets = daemon.sockets();
        let session = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                become_user(1001);
                let client = Client::new(Session::connect(&sockets).unwrap());
                become_user(1002);
                client.check(&client.spin(3, 3));
                client
            });
            thread.join().unwrap()
        });
        let has = |sessions: &[_]| sessions.contains(&session.session.id());
        let status = daemon.status();
        let found = status.applications.iter().find(|found| has(&found.sessions)).unwrap();
        assert_eq!(found.tenant, TenantId(1001), "who connected is who is accounted");
    });
}
