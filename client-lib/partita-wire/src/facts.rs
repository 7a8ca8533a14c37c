//! Facts about a device, and offers of several devices, as bytes.

use crate::bytes::{BytesError, Reader, Writer};
use crate::handshake::MAX_NAME;
use partita_model::{
    Bytes, ComputeCapability, DeviceFacts, DeviceKind, GpuNumber, SmSet, Timekeeping,
};

/// The most GPUs of one daemon.
pub const MAX_GPUS: usize = 16;
/// The longest name in an offer, in bytes. With it all offers fit into one message.
const OFFERED_NAME: usize = 127;
/// Bytes of an offer with an empty name.
const LEAST_OFFER: usize = 2 + LEAST_FACTS;
const LEAST_FACTS: usize = 4 + 16 + 4 + 7 * 4 + 5 * 8 + 4;
/// The unit of reserved shared memory, in bytes.
const RESERVED_UNIT: u64 = 128;
const _: () = assert!(MAX_GPUS * (LEAST_OFFER + OFFERED_NAME) + 64 <= crate::MAX_MESSAGE);

/// A GPU that a client's tenant may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuOffer {
    /// Its number, for [`crate::GpuWish::Number`].
    pub number: GpuNumber,
    /// Its facts.
    pub facts: DeviceFacts,
}

/// Writes offers, of which there are [`MAX_GPUS`] at most.
pub(crate) fn write_offers(offers: &[GpuOffer], writer: &mut Writer<'_>) {
    let offers = &offers[..offers.len().min(MAX_GPUS)];
    writer.count(offers.len());
    for offer in offers {
        writer.u16(offer.number.0);
        write_named(&offer.facts, OFFERED_NAME, writer);
    }
}

/// Reads offers.
pub(crate) fn read_offers(reader: &mut Reader<'_>) -> Result<Vec<GpuOffer>, BytesError> {
    let at = reader.at();
    let count = reader.count(LEAST_OFFER, "GPUs")?;
    if count > MAX_GPUS {
        return Err(BytesError::Long {
            at,
            what: "GPUs",
            length: count as u64,
            limit: MAX_GPUS as u64,
        });
    }
    (0..count)
        .map(|_| {
            let number = GpuNumber(reader.u16("GPU")?);
            Ok(GpuOffer { number, facts: read(reader)? })
        })
        .collect()
}

/// Writes the facts about a device.
pub(crate) fn write(facts: &DeviceFacts, writer: &mut Writer<'_>) {
    write_named(facts, MAX_NAME, writer);
}

fn write_named(facts: &DeviceFacts, longest_name: usize, writer: &mut Writer<'_>) {
    writer.u8(match facts.kind {
        DeviceKind::Emulated => 0,
        DeviceKind::Cuda => 1,
    });
    writer.u8(facts.compute_capability.major);
    writer.u8(facts.compute_capability.minor);
    writer.u8(match facts.timekeeping {
        Timekeeping::Simulated => 0,
        Timekeeping::Off => 1,
        Timekeeping::Real => 2,
    });
    writer.bytes(&facts.uuid);
    writer.u16(facts.sm_count);
    // These two bytes were zero once: older daemons and their GPUs had neither.
    writer.u8(facts.register_parts.saturating_sub(1));
    writer.u8(u8::try_from(facts.shared_reserved.0 / RESERVED_UNIT).unwrap_or(u8::MAX));
    for value in [
        facts.sm_clock_khz,
        facts.memory_clock_khz,
        facts.memory_bus_bits,
        facts.threads_per_sm,
        facts.ctas_per_sm,
        facts.registers_per_sm,
        facts.threads_per_cta,
    ] {
        writer.u32(value);
    }
    for value in [
        facts.memory,
        facts.llc,
        facts.shared_per_sm,
        facts.shared_per_cta,
        facts.shared_per_cta_optin,
    ] {
        writer.u64(value.0);
    }
    writer.text(&facts.name, longest_name);
}

/// Reads the facts about a device.
pub(crate) fn read(reader: &mut Reader<'_>) -> Result<DeviceFacts, BytesError> {
    let at = reader.at();
    let kind = match reader.u8("device kind")? {
        0 => DeviceKind::Emulated,
        1 => DeviceKind::Cuda,
        other => {
            return Err(BytesError::Value { at, what: "device kind", value: u64::from(other) });
        }
    };
    let compute_capability = ComputeCapability {
        major: reader.u8("compute capability")?,
        minor: reader.u8("compute capability")?,
    };
    let at = reader.at();
    let timekeeping = match reader.u8("timekeeping")? {
        0 => Timekeeping::Simulated,
        1 => Timekeeping::Off,
        2 => Timekeeping::Real,
        other => {
            return Err(BytesError::Value { at, what: "timekeeping", value: u64::from(other) });
        }
    };
    let uuid = reader.uuid()?;
    let sm_count = reader.u16("SM count")?;
    let register_parts = reader.u8("register parts")?.saturating_add(1);
    let shared_reserved = Bytes(u64::from(reader.u8("reserved shared memory")?) * RESERVED_UNIT);
    Ok(DeviceFacts {
        kind,
        timekeeping,
        uuid,
        compute_capability,
        sm_count,
        sm_clock_khz: reader.u32("SM clock")?,
        memory_clock_khz: reader.u32("memory clock")?,
        memory_bus_bits: reader.u32("memory bus")?,
        threads_per_sm: reader.u32("threads per SM")?,
        ctas_per_sm: reader.u32("CTAs per SM")?,
        registers_per_sm: reader.u32("registers per SM")?,
        threads_per_cta: reader.u32("threads per CTA")?,
        memory: Bytes(reader.u64("memory")?),
        llc: Bytes(reader.u64("LLC")?),
        shared_per_sm: Bytes(reader.u64("shared memory per SM")?),
        shared_per_cta: Bytes(reader.u64("shared memory per CTA")?),
        shared_per_cta_optin: Bytes(reader.u64("shared memory per CTA")?),
        register_parts,
        shared_reserved,
        // No program asks for numbers of SMs.
        absent_sms: SmSet::EMPTY,
        name: reader.text(MAX_NAME, "device name")?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Answer;

    pub(crate) fn offer(number: u16) -> GpuOffer {
        let facts = DeviceFacts {
            kind: DeviceKind::Cuda,
            timekeeping: Timekeeping::Real,
            name: "a GPU".into(),
            uuid: [number.to_le_bytes()[0]; 16],
            compute_capability: ComputeCapability { major: 9, minor: 0 },
            sm_count: 132,
            sm_clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6144,
            memory: Bytes(141 << 30),
            llc: Bytes(50 << 20),
            threads_per_sm: 2048,
            ctas_per_sm: 32,
            registers_per_sm: 65536,
            shared_per_sm: Bytes(233_472),
            shared_per_cta: Bytes(49152),
            shared_per_cta_optin: Bytes(232_448),
            threads_per_cta: 1024,
            register_parts: 4,
            shared_reserved: Bytes(1024),
            absent_sms: SmSet::EMPTY,
        };
        GpuOffer { number: GpuNumber(number), facts }
    }

    #[test]
    fn offers_survive_the_way_and_no_part_of_them_does() {
        for count in [0, 1, 2, 16] {
            let answer = Answer::Offer((0..count).map(offer).collect());
            let bytes = answer.encode();
            assert!(bytes.len() <= crate::MAX_MESSAGE);
            assert_eq!(Answer::decode(&bytes), Ok(answer));
            for cut in 0..bytes.len() {
                assert!(Answer::decode(&bytes[..cut]).is_err(), "{count} cut to {cut}");
            }
        }
    }

    #[test]
    fn the_longest_offer_fits_into_a_message() {
        let named = |number| {
            let mut offer = offer(number);
            offer.facts.name = "x".repeat(300);
            offer
        };
        let bytes = Answer::Offer((0..16).map(named).collect()).encode();
        assert!(bytes.len() <= crate::MAX_MESSAGE, "{}", bytes.len());
        let Ok(Answer::Offer(found)) = Answer::decode(&bytes) else { panic!("it is an offer") };
        assert_eq!(found[15].facts.name, "x".repeat(OFFERED_NAME));
    }

    #[test]
    fn a_count_that_lies_is_refused() {
        let mut bytes = Answer::Offer(vec![offer(0)]).encode();
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = Answer::decode(&bytes).unwrap_err().to_string();
        assert!(error.contains("GPUs at byte 12 has length 4294967295"), "{error}");
    }
}
