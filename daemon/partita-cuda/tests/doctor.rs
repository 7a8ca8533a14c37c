//! The findings of `partita doctor` about a GPU.

mod fake;

use fake::Fake;
use partita_cuda_device::doctor::{Finding, Places, Verdict, examine};
use std::path::Path;

fn places(fake: &Fake, folder: &Path) -> Places {
    Places {
        library: Some(fake.path()),
        nvml: Some(fake.path()),
        devices: folder.join("dev"),
        mps_pipes: folder.join("mps"),
    }
}

/// A machine with a GPU, after these commands; what is found of one check.
fn found(commands: &[&str], check: &str) -> Finding {
    let fake = Fake::new();
    for command in commands {
        fake.tell(command);
    }
    let places = places(&fake, fake.folder());
    std::fs::create_dir(&places.devices).expect("a fresh folder");
    for name in ["nvidia0", "nvidiactl", "nvidia-uvm"] {
        std::fs::write(places.devices.join(name), "").expect("a fresh folder");
    }
    let findings = examine(&places);
    let found = findings.iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("no `{check}` in {findings:#?}")).clone()
}

#[test]
fn what_stands_in_the_way_is_named_with_its_remedy() {
    let check = |commands: &[&str], check: &str, verdict, words: &[&str]| {
        let finding = found(commands, check);
        let text = format!("{} {}", finding.found, finding.remedy.clone().unwrap_or_default());
        assert_eq!(finding.verdict, verdict, "{finding:?}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert_eq!(verdict == Verdict::Fine, finding.remedy.is_none());
    };
    check(&[], "device files", Verdict::Fine, &["nvidia0", "nvidiactl"]);
    check(&[], "driver", Verdict::Fine, &["CUDA 12.4"]);
    check(&[], "MPS", Verdict::Fine, &[]);
    check(&[], "GPU 0", Verdict::Fine, &["Fake GPU", "9.0", "132 SMs"]);
    check(&[], "GPU 0 compute mode", Verdict::Fine, &[]);
    check(&[], "GPU 0 MIG", Verdict::Fine, &[]);
    check(&[], "GPU 0 NVML", Verdict::Fine, &["550.54.15", "counts traffic"]);
    check(&["set gpm 0"], "GPU 0 NVML", Verdict::Fine, &["counts no traffic"]);
    check(&["set driver 12020"], "driver", Verdict::Trouble, &["12.2", "550"]);
    check(&["fail cuInit 803"], "driver", Verdict::Trouble, &["different releases"]);
    check(&["set shim 1"], "driver", Verdict::Trouble, &["Partita's own library"]);
    check(&["set gpus 0"], "GPUs", Verdict::Trouble, &["CUDA_VISIBLE_DEVICES"]);
    check(&["set major 7"], "GPU 0", Verdict::Trouble, &["7.0", "7.5"]);
    check(
        &["set compute-mode 3"],
        "GPU 0 compute mode",
        Verdict::Note,
        &["exclusive", "-c DEFAULT"],
    );
    check(&[], "GPU 0 run time limit", Verdict::Fine, &["none"]);
    check(&["set display 1"], "GPU 0 run time limit", Verdict::Trouble, &["display"]);
    check(&["set compute-mode 2"], "GPU 0 compute mode", Verdict::Trouble, &["prohibited"]);
    check(&["set mig 1"], "GPU 0 MIG", Verdict::Trouble, &["instances", "-mig 0"]);
    check(&["fail nvmlInit_v2 9"], "GPU 0 NVML", Verdict::Note, &["libnvidia-ml"]);
}

#[test]
fn files_say_more() {
    let fake = Fake::new();
    let places = places(&fake, fake.folder());
    let of = |check: &str| {
        examine(&places).into_iter().find(|finding| finding.check == check).expect(check)
    };
    assert_eq!(of("device files").verdict, Verdict::Note, "a machine without a GPU is no trouble");
    std::fs::create_dir(&places.devices).expect("a fresh folder");
    std::fs::write(places.devices.join("nvidia0"), "").expect("a fresh folder");
    let finding = of("device files");
    assert!(
        finding.verdict == Verdict::Trouble && finding.found.contains("nvidiactl is missing"),
        "{finding:?}"
    );
    std::fs::create_dir(&places.mps_pipes).expect("a fresh folder");
    std::fs::write(places.mps_pipes.join("control"), "").expect("a fresh folder");
    let finding = of("MPS");
    assert!(finding.remedy.is_some_and(|remedy| remedy.contains("nvidia-cuda-mps-control")));
    let nothing = Places { library: Some("/nonexistent".into()), ..places.clone() };
    let driver =
        examine(&nothing).into_iter().find(|finding| finding.check == "driver").expect("driver");
    assert!(
        driver.verdict == Verdict::Note && driver.found.contains("not installed"),
        "{driver:?}"
    );
}
