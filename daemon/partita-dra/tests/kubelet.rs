//! The driver between a kubelet, an API server and a real `partitad` on the emulated GPU.

mod standin;

use partita_e2e::daemon::Daemon;
use partita_e2e::{binaries, toolchain};
use serde_json::{Value, json};
use standin::api_server::{ApiServer, result};
use standin::disk::Disks;
use standin::kubelet::Kubelet;
use standin::tls::{Authority, Shown};
use standin::{DRIVER, Driver, container, wait_for};
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

const SMS: u16 = 24;
/// A GPU that keeps no time: the programs' results are what counts.
const DEVICE: &str = "emu:cd-search-24,timing=off";
const EVEN: &str = "[policy]\npartitioner = \"even\"\n";

/// The owner of the sockets that systemd makes, and their group.
const OWNER: (u32, u32) = (4712, 4711);

/// All that a node has.
struct Node {
    folder: tempfile::TempDir,
    daemon: Daemon,
    server: ApiServer,
    driver: Driver,
    kubelet: Kubelet,
}

impl Node {
    async fn start() -> Node {
        let daemon = Daemon::for_every_user(DEVICE, EVEN);
        let folder = folder();
        let server = ApiServer::start();
        let driver = Driver::start(folder.path(), &daemon.socket_dir(), server.address(), &[]);
        let kubelet = Kubelet::register(folder.path()).await;
        let node = Node { folder, daemon, server, driver, kubelet };
        wait_for("the slice", async || node.server.slice().is_some()).await;
        node
    }

    async fn restart_driver(&mut self) {
        self.driver.kill_and_restart();
        self.kubelet = Kubelet::register(self.folder.path()).await;
    }

    fn allocate(&self, uid: &str, sms: &str, parameters: Option<Value>) {
        self.server.allocate(
            uid,
            &json!([result("gpu", json!({"sms": sms, "memory": "1Gi"}))]),
            parameters,
            1000,
        );
    }

    fn specifications(&self) -> usize {
        fs::read_dir(self.folder.path().join("cdi")).map_or(0, Iterator::count)
    }

    fn is_empty(&self) -> bool {
        self.daemon.reservations().is_empty()
            && self.specifications() == 0
            && fs::read_dir(self.claims()).map_or(0, Iterator::count) == 0
    }

    fn claims(&self) -> std::path::PathBuf {
        self.folder.path().join("kubelet/plugins").join(DRIVER).join("claims")
    }

    /// Part of what `partita reservation list` says of this reservation.
    fn reservation(&self, id: &str) -> Value {
        let output = self.daemon.partita(&["reservation", "list", "--json"]).output();
        let output = output.expect("partita can be started").stdout;
        let all: Value = serde_json::from_slice(&output).expect("it is JSON");
        let mut all = all.as_array().cloned().unwrap_or_default().into_iter();
        all.find(|one| one["id"] == id).unwrap_or_default()
    }
}

/// A folder with what the packages put into `/usr/lib/partita`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary directory can be created");
    let lib = folder.path().join("lib");
    fs::create_dir_all(lib.join("cuda")).expect("a folder can be made");
    for name in ["libpartita_cuda.so", "partita"] {
        fs::copy(binaries::binary(name), lib.join(name)).expect("a binary can be copied");
    }
    for (link, target) in [("libcuda.so.1", "libpartita_cuda.so"), ("ptxas", "partita")] {
        symlink(format!("../{target}"), lib.join("cuda").join(link)).expect("a link can be made");
    }
    for path in [folder.path().to_owned(), lib] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).expect("a folder can be opened");
    }
    folder
}

#[tokio::test]
async fn a_program_in_a_container_gets_the_sms_of_its_claim() {
    if !container::can_run() {
        return;
    }
    let mut node = Node::start().await;
    let poly = node.folder.path().join("poly");
    fs::copy(toolchain::program("poly"), &poly).expect("a program can be copied");
    node.allocate("c-1", "9", Some(json!({"maxSms": 10, "priority": "latency"})));
    let devices = node.kubelet.prepared("c-1").await;
    let one = node.reservation("k8s-c-1.0");
    assert_eq!(
        (&one["sms"], &one["max_sms"], &one["tenant"]),
        (&9.into(), &10.into(), &1000.into())
    );
    assert_eq!((&one["priority"], &one["memory_bytes"]), (&"latency".into(), &(1 << 30).into()));

    let program = [poly.to_str().expect("a plain path"), "32768", "3000", "1", "held"];
    let mut command = container::command(&node.folder.path().join("cdi"), &devices, 1000, &program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().expect("unshare can be started");
    let status = node.daemon.wait_for("the program to have its SMs", |status| {
        status.partitions.iter().any(|one| matches!(one.sms.len(), 9..=10))
            && status.applications.iter().any(|one| one.ctas_completed > 0)
    });
    assert_eq!(status.applications[0].tenant.0, 1000);
    assert_eq!(node.reservation("k8s-c-1.0")["application"], json!(status.applications[0].id));

    // Neither the driver's end nor the daemon's takes anything from it.
    node.restart_driver().await;
    node.daemon.kill_and_restart();
    assert_eq!(node.kubelet.prepared("c-1").await, devices);
    drop(child.stdin.take());
    let mut output = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut output).expect("it is text");
    assert!(child.wait().expect("it ends").success() && output.ends_with("PASSED\n"), "{output}");
    assert_eq!(node.kubelet.unprepare("c-1").await, "");
    assert!(node.is_empty());
}

#[tokio::test]
async fn preparing_and_unpreparing_may_be_repeated_at_any_time() {
    let mut node = Node::start().await;
    node.allocate("c-1", "8", None);
    node.allocate("c-2", "16", None);
    let both = node.kubelet.prepare(&["c-1", "c-2"]).await;
    assert!(both.iter().all(|answer| answer.error.is_empty()), "{both:?}");
    let device = &both[0].devices[0];
    assert_eq!(device.request_names, ["gpu"]);
    assert_eq!((device.pool_name.as_str(), device.device_name.as_str()), ("gpu01", "gpu-0"));
    assert_eq!(device.cdi_device_ids, ["gpu.partita.dev/claim=c-1-0"]);
    assert_eq!(device.share_id.as_deref(), Some("5b1c0e0a-0000-4000-8000-000000000001"));
    let reserved = ["k8s-c-1.0", "k8s-c-2.0"];
    assert_eq!(node.daemon.reservations(), reserved);

    // The API server is not asked again, and a lost specification and reservation come back.
    node.server.forbid(true);
    node.restart_driver().await;
    fs::remove_file(node.folder.path().join("cdi/gpu.partita.dev-claim_c-1.json"))
        .expect("a specification can be removed");
    release(&node.daemon, "k8s-c-1.0");
    let again = node.kubelet.prepare(&["c-1", "c-2"]).await;
    assert_eq!(again, both);
    assert_eq!(node.daemon.reservations(), reserved);
    assert_eq!(node.specifications(), 2);
    // The driver looks by itself, too.
    release(&node.daemon, "k8s-c-2.0");
    node.daemon.kill_and_restart();
    node.restart_driver().await;
    wait_for("the reservation", async || node.daemon.reservations() == reserved).await;

    assert_eq!(node.kubelet.unprepare("c-1").await, "");
    node.restart_driver().await;
    assert_eq!(node.kubelet.unprepare("c-1").await, "");
    assert_eq!(node.daemon.reservations(), reserved[1..]);
    // A checkpoint that is lost or broken: what was prepared ends all the same.
    node.driver.kill();
    fs::write(node.claims().join("c-2.json"), "{\"version\": 1, \"names")
        .expect("it can be broken");
    node.restart_driver().await;
    assert!(node.driver.log().contains("c-2.json.bad"), "{}", node.driver.log());
    node.server.forbid(false);
    assert_eq!(node.kubelet.prepare(&["c-2"]).await[0], both[1]);
    node.driver.kill();
    fs::remove_file(node.claims().join("c-2.json")).expect("it can be lost");
    fs::remove_file(node.claims().join("c-2.json.bad")).expect("it was put aside");
    node.restart_driver().await;
    assert_eq!(node.kubelet.unprepare("c-2").await, "");
    assert!(node.is_empty());
}

fn release(daemon: &Daemon, id: &str) {
    let done = daemon.partita(&["reservation", "release", id]).status();
    assert!(done.expect("partita can be started").success());
}

#[tokio::test]
async fn a_refusal_names_the_remedy_and_leaves_nothing() {
    let mut node = Node::start().await;
    let check = |error: String, words: &str| assert!(error.contains(words), "{error}");
    check(node.kubelet.refused("unknown").await, "claim-unknown");
    check(node.kubelet.refused("../../etc").await, "letters, digits");
    assert!(node.kubelet.unprepare("../../etc").await.contains("letters, digits"));
    assert_eq!(node.kubelet.unprepare("unknown").await, "");
    node.allocate("large", "25", None);
    check(node.kubelet.refused("large").await, &format!("has {SMS} SMs"));
    node.allocate("c-1", "20", None);
    node.allocate("c-2", "8", None);
    node.kubelet.prepared("c-1").await;
    check(node.kubelet.refused("c-2").await, "k8s-c-1 has 20 SMs");
    node.allocate("odd", "8", Some(json!({"priority": "high"})));
    check(node.kubelet.refused("odd").await, "latency, normal, batch");
    let elsewhere = json!([{"request": "gpu", "driver": DRIVER, "pool": "gpu02",
        "device": "gpu-0", "consumedCapacity": {"sms": "1"}}]);
    node.server.allocate("elsewhere", &elsewhere, None, 0);
    check(node.kubelet.refused("elsewhere").await, "--node-name");
    let mut gone = result("gpu", json!({"sms": "1"}));
    gone["device"] = "gpu-7".into();
    node.server.allocate("gone", &json!([gone]), None, 0);
    check(node.kubelet.refused("gone").await, "partitad serves no `gpu-7`");
    node.server.forbid(true);
    check(node.kubelet.refused("c-2").await, "ClusterRole");
    node.server.forbid(false);
    // Nothing was left of any of them.
    assert_eq!(node.daemon.reservations(), ["k8s-c-1.0"]);
    assert_eq!(node.specifications(), 1);
    assert_eq!(fs::read_dir(node.claims()).map_or(0, Iterator::count), 1);
    // Nobody has the claim's name with another UID.
    let path = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/claim-c-2";
    let mut claim = node.server.get(path).expect("it is there");
    claim["metadata"]["uid"] = "another".into();
    node.server.put(path, claim);
    check(node.kubelet.refused("c-2").await, "made anew");
    node.server.put("/api/v1/namespaces/ns/pods/pod-c-3", Value::Null);
    node.restart_driver().await;
    assert_eq!(node.kubelet.unprepare("c-1").await, "");
    assert!(node.is_empty());
}

#[tokio::test]
async fn a_full_disk_costs_only_the_new_claim() {
    let folder = folder();
    let claims = folder.path().join("kubelet/plugins").join(DRIVER).join("claims");
    let cdi = folder.path().join("cdi");
    let Some(disks) = Disks::new(&[claims.clone(), cdi.clone()]) else { return };
    let daemon = Daemon::for_every_user(DEVICE, EVEN);
    let server = ApiServer::start();
    let sockets = daemon.socket_dir();
    let mut driver =
        Driver::start_by(&disks.enter(), folder.path(), &sockets, server.address(), &[]);
    let mut kubelet = Kubelet::register(folder.path()).await;
    wait_for("the slice", async || server.slice().is_some()).await;
    for uid in ["c-1", "c-2", "c-3"] {
        server.allocate(uid, &json!([result("gpu", json!({"sms": "8"}))]), None, 0);
    }
    let devices = kubelet.prepared("c-1").await;
    kubelet.prepared("c-2").await;
    let kept = fs::read(disks.path(&claims).join("c-1.json")).expect("the claim is kept");
    for full in [&claims, &cdi] {
        disks.fill(full);
        let error = kubelet.refused("c-3").await;
        assert!(error.contains("make room on the node; the kubelet asks again"), "{error}");
        assert_eq!(daemon.reservations(), ["k8s-c-1.0", "k8s-c-2.0"]);
        // The next driver finds the checkpoint whole, and what is prepared stays so.
        driver.kill_and_restart();
        kubelet = Kubelet::register(folder.path()).await;
        assert_eq!(kubelet.prepared("c-1").await, devices);
        assert_eq!(fs::read(disks.path(&claims).join("c-1.json")).expect("it is there"), kept);
        let count = |folder| {
            let files = fs::read_dir(disks.path(folder)).expect("it is there");
            files.filter(|file| file.as_ref().expect("it is read").file_name() != "filler").count()
        };
        assert_eq!((count(&claims), count(&cdi)), (2, 2), "nothing is left of the third claim");
        disks.make_room(full);
    }
    // A claim ends on a full disk, too: that takes no room.
    disks.fill(&claims);
    disks.fill(&cdi);
    assert_eq!(kubelet.unprepare("c-2").await, "");
    assert_eq!(daemon.reservations(), ["k8s-c-1.0"]);
    disks.make_room(&claims);
    disks.make_room(&cdi);
    kubelet.prepared("c-3").await;
    assert_eq!(daemon.reservations(), ["k8s-c-1.0", "k8s-c-3.0"]);
}

#[tokio::test]
async fn while_the_daemon_is_away_pods_end_and_none_comes() {
    let folder = folder();
    let server = ApiServer::start();
    let sockets = folder.path().join("sockets");
    let mut driver = Driver::start(folder.path(), &sockets, server.address(), &[]);
    let kubelet = Kubelet::register(folder.path()).await;
    assert!(server.slice().is_none());
    server.allocate("c-1", &json!([result("gpu", json!({"sms": "8"}))]), None, 0);
    let error = kubelet.refused("c-1").await;
    assert!(error.contains("systemctl status partitad"), "{error}");

    let daemon = Daemon::for_every_user(DEVICE, EVEN);
    symlink(daemon.socket_dir(), &sockets).expect("a link can be made");
    wait_for("the slice", async || server.slice().is_some()).await;
    kubelet.wait_for_health(true).await;
    let device = server.slice().expect("it is there")["spec"]["devices"][0].clone();
    assert_eq!(device["allowMultipleAllocations"], json!(true));
    assert_eq!(device["capacity"]["sms"]["value"], "24");
    assert_eq!(device["capacity"]["sms"]["requestPolicy"]["default"], "1");
    assert_eq!(device["attributes"]["emulated"]["bool"], json!(true));
    kubelet.prepared("c-1").await;
    assert_eq!(daemon.reservations(), ["k8s-c-1.0"]);

    fs::remove_file(&sockets).expect("a link can be removed");
    let message = kubelet.wait_for_health(false).await;
    assert!(message.contains("partitad does not answer"), "{message}");
    let taint = || {
        server
            .slice()
            .is_some_and(|slice| slice["spec"]["devices"][0]["taints"][0]["effect"] == "NoSchedule")
    };
    wait_for("the taint", async || taint()).await;
    // The pod ends now, and its reservation when the daemon is back, whatever is restarted.
    assert_eq!(kubelet.unprepare("c-1").await, "");
    driver.kill_and_restart();
    let kubelet = Kubelet::register(folder.path()).await;
    assert!(taint(), "the devices stay");
    symlink(daemon.socket_dir(), &sockets).expect("a link can be made");
    wait_for("the reservation to end", async || daemon.reservations().is_empty()).await;
    kubelet.wait_for_health(true).await;
    wait_for("the taint to go", async || !taint()).await;
    // A change for each of: the slice, the taint, its end; looking changes nothing.
    assert_eq!(server.changes().len(), 3, "{:?}", server.changes());
    server.remove_slice();
    wait_for("the slice to come back", async || server.slice().is_some()).await;
}

/// Sockets as systemd makes them, and a driver with the capabilities of its manifest.
#[tokio::test]
async fn what_the_manifests_give_suffices_for_driver_and_containers() {
    if !container::can_run() {
        return;
    }
    let folder = folder();
    let daemon = Daemon::for_group(DEVICE, EVEN, OWNER.0, OWNER.1);
    let server = ApiServer::start();
    let capabilities = capabilities_of_the_manifest();
    let with = |capabilities: &[String]| -> Vec<String> {
        let list: String = capabilities.iter().map(|one| format!(",+{one}")).collect();
        let bounds = format!("--bounding-set=-all{list}");
        ["setpriv", "--no-new-privs", "--inh-caps=-all", &bounds].map(str::to_owned).to_vec()
    };
    let (by, sockets) = (with(&capabilities), daemon.socket_dir());
    let _driver = Driver::start_by(&by, folder.path(), &sockets, server.address(), &[]);
    let kubelet = Kubelet::register(folder.path()).await;
    wait_for("the slice", async || server.slice().is_some()).await;
    // Each of them is needed.
    let check = |capabilities: &[String]| {
        let words = with(capabilities);
        let mut command = std::process::Command::new(&words[0]);
        command.args(&words[1..]).arg(env!("CARGO_BIN_EXE_partita-dra")).arg("check");
        command.arg("--kubelet-dir").arg(folder.path().join("kubelet"));
        let output = command.arg("--socket-dir").arg(&sockets).output();
        output.expect("setpriv can be started").status.success()
    };
    assert!(check(&capabilities));
    assert_eq!(capabilities.len(), 1);
    assert!(!check(&[]));

    let poly = folder.path().join("poly");
    fs::copy(toolchain::program("poly"), &poly).expect("a program can be copied");
    server.allocate("c-1", &json!([result("gpu", json!({"sms": "8"}))]), None, 1000);
    let devices = kubelet.prepared("c-1").await;
    let program = [poly.to_str().expect("a plain path"), "4096", "300", "3"];
    let run = |cdi: &Path| {
        let output = container::command(cdi, &devices, 1000, &program).output();
        let output = output.expect("unshare can be started");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let cdi = folder.path().join("cdi");
    let (is_good, said) = run(&cdi);
    assert!(is_good && said.ends_with("PASSED\n"), "{said}");
    // It is the group that lets the program in.
    let (without, file) = (folder.path().join("without"), "gpu.partita.dev-claim_c-1.json");
    let text = fs::read_to_string(cdi.join(file)).expect("the specification is there");
    let mut edits: Value = serde_json::from_str(&text).expect("it is JSON");
    let groups = edits["containerEdits"]["additionalGids"].take();
    assert_eq!(groups, json!([OWNER.1]));
    fs::create_dir(&without).expect("a folder can be made");
    fs::write(without.join(file), edits.to_string()).expect("a file can be written");
    assert!(!run(&without).0, "a stranger may connect: the test shows nothing");
}

/// What the container of the DaemonSet keeps of root's capabilities, as `setpriv` names them.
fn capabilities_of_the_manifest() -> Vec<String> {
    let file = partita_e2e::workspace().join("systemd/kubernetes/daemonset.yaml");
    let text = fs::read_to_string(file).expect("the manifest is there");
    let set: Value = serde_norway::from_str(&text).expect("it is YAML");
    let context = &set["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
    let added = context["capabilities"]["add"].as_array().expect("it is a list");
    added.iter().map(|one| one.as_str().expect("it is a name").to_lowercase()).collect()
}

#[tokio::test]
async fn over_tls_the_driver_follows_renewed_tokens_and_certificates() {
    let folder = folder();
    let account = folder.path().join("account");
    fs::create_dir(&account).expect("a folder can be made");
    let write = |name: &str, text: &str| {
        fs::write(account.join(name), text).expect("a file can be written");
    };
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    write("ca.crt", first.pem());
    write("token", "one\n");
    let shown = Shown::new(&first, "127.0.0.1");
    let server = ApiServer::start_with_tls(shown.clone());
    server.demand("one");
    let daemon = Daemon::for_every_user(DEVICE, EVEN);
    let options = ["--kube-account", account.to_str().expect("a plain path")];
    let _driver = Driver::start(folder.path(), &daemon.socket_dir(), server.address(), &options);
    let kubelet = Kubelet::register(folder.path()).await;
    wait_for("the slice", async || server.slice().is_some()).await;
    for uid in ["c-1", "c-2", "c-3"] {
        server.allocate(uid, &json!([result("gpu", json!({"sms": "8"}))]), None, 0);
    }
    kubelet.prepared("c-1").await;

    // The token of before is over; the kubelet renews the file before that.
    server.demand("two");
    let error = kubelet.refused("c-2").await;
    assert!(error.contains("(401)"), "{error}");
    write("token", "two\n");
    kubelet.prepared("c-2").await;

    // A server gets no token where the file does not name its authority, or where its name is
    // another.
    shown.change(&second, "127.0.0.1");
    let error = kubelet.refused("c-3").await;
    assert!(error.contains("UnknownIssuer"), "{error}");
    shown.change(&first, "127.0.0.2");
    let error = kubelet.refused("c-3").await;
    assert!(error.contains("not valid for name"), "{error}");
    // A new authority is named beside the one of before, and a half-written file ends nothing.
    shown.change(&second, "127.0.0.1");
    write("ca.crt", &[first.pem(), second.pem()].concat());
    kubelet.prepared("c-3").await;
    write("ca.crt", "");
    assert_eq!(kubelet.unprepare("c-3").await, "");
    kubelet.prepared("c-3").await;
    assert_eq!(daemon.reservations().len(), 3);
}

#[tokio::test]
async fn only_one_driver_serves_a_node() {
    let folder = folder();
    let sockets = Path::new("/nonexistent");
    let server = ApiServer::start();
    let _first = Driver::start(folder.path(), sockets, server.address(), &[]);
    drop(Kubelet::register(folder.path()).await);
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_partita-dra"));
        command.args(arguments).arg("--kubelet-dir").arg(folder.path().join("kubelet"));
        command.env_remove("NODE_NAME").env_remove("KUBERNETES_SERVICE_HOST");
        let output = command.output().expect("the driver can be started");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = run(&["--node-name", "n", "--kube-api", "http://127.0.0.1:1"]);
    assert!(code == Some(1) && text.contains("another partita-dra"), "{text}");
    let (code, text) = run(&[]);
    assert!(code == Some(2) && text.contains("--node-name"), "{text}");
    let (code, text) = run(&["--node-name", "n"]);
    assert!(code == Some(2) && text.contains("kubectl proxy"), "{text}");
    assert_eq!(run(&["check", "--driver-only"]).0, Some(0));
    let (code, text) = run(&["check", "--socket-dir", "/nonexistent"]);
    assert!(code == Some(1) && text.contains("partitad does not answer"), "{text}");
    let (code, text) = run(&["check", "--driver-name", "other.dev"]);
    assert!(code == Some(1) && text.contains("start partita-dra"), "{text}");
}
