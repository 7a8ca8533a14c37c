//! The integrity answer, which the runtime requests at its start and compares with its own
//! computation.
//!
//! The answer is an HMAC-MD2 over facts that both sides know: the asking process and thread, the
//! time, the addresses of the export tables, and the devices. After any difference the runtime
//! fails with `cudaErrorSystemNotReady` or a similar error. The values must therefore be those that
//! the other entry points return. The construction was found by measurement; see `start-up.md`.

use hmac::{KeyInit, Mac, SimpleHmac};
use md2::Md2;

const KEY: [u8; 16] = [
    0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f,
];

/// The facts that the answer depends on.
pub struct Question<'a> {
    /// The result of `cuDriverGetVersion`.
    pub driver_version: u32,
    /// The first argument.
    pub version: u32,
    /// Process id.
    pub pid: u32,
    /// The lower half of `pthread_self()`.
    pub thread: u32,
    /// Address of the table `CUDART_INTERFACE`.
    pub cudart_table: u64,
    /// Address of the table `INTEGRITY_CHECK`.
    pub integrity_table: u64,
    /// Address of the function that answers.
    pub function: u64,
    /// The second argument.
    pub unix_seconds: u64,
    /// All devices in order.
    pub devices: &'a [Device],
}

/// The facts that identify a device.
pub struct Device {
    /// `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// Attributes 50, 33, 34.
    pub pci: [i32; 3],
}

/// The answer.
#[must_use]
pub fn answer(question: &Question<'_>) -> [u64; 2] {
    match question.version % 10 {
        0 => [0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
        1 => [0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
        _ => mac(&message(question)),
    }
}

fn message(question: &Question<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    for word in [question.driver_version, question.version, question.pid, question.thread] {
        message.extend(word.to_le_bytes());
    }
    for word in
        [question.cudart_table, question.integrity_table, question.function, question.unix_seconds]
    {
        message.extend(word.to_le_bytes());
    }
    for device in question.devices {
        message.extend(device.uuid);
        message.extend(device.pci.iter().flat_map(|number| number.to_le_bytes()));
    }
    message
}

fn mac(message: &[u8]) -> [u64; 2] {
    let mut mac = SimpleHmac::<Md2>::new_from_slice(&KEY).expect("HMAC takes keys of any length");
    mac.update(message);
    let tag: [u8; 16] = mac.finalize().into_bytes().into();
    let (low, high) = tag.split_at(8);
    [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("half of sixteen bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An exchange that cudart 13 accepted on a machine with two (made-up) devices.
    #[test]
    fn an_accepted_exchange_is_reproduced() {
        let uuid = |last: u8| {
            let mut uuid: [u8; 16] = std::array::from_fn(|i| u8::try_from(i).unwrap() + 1);
            uuid[15] = last;
            uuid
        };
        let devices = [
            Device { uuid: uuid(0x10), pci: [0, 1, 0] },
            Device { uuid: uuid(0x11), pci: [0, 2, 0] },
        ];
        let question = Question {
            driver_version: 0x32fa,
            version: 0x32fc,
            pid: 0x1922,
            thread: 0xb6e3_f000,
            cudart_table: 0x7f8f_b6ee_1ec0,
            integrity_table: 0x7f8f_b6ee_2b20,
            function: 0x7f8f_b6ea_c29d,
            unix_seconds: 0x6b00_e12d,
            devices: &devices,
        };
        let bytes: Vec<u8> = answer(&question).iter().flat_map(|half| half.to_le_bytes()).collect();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "7df720eb9a20fa9ee0a721217c970d2f");
    }

    #[test]
    fn two_versions_have_fixed_answers() {
        let question = |version| Question {
            driver_version: 13050,
            version,
            pid: 1,
            thread: 1,
            cudart_table: 1,
            integrity_table: 1,
            function: 1,
            unix_seconds: 1,
            devices: &[],
        };
        assert_eq!(answer(&question(20)), [0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8]);
        assert_eq!(answer(&question(31)), [0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8]);
        assert_ne!(answer(&question(32)), answer(&question(33)));
    }
}
