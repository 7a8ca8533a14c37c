//! Sections and symbols of an ELF file (System V ABI, "Object Files"), as far as cubins have them.

use crate::CubinError;
use crate::bytes::{range, u16_at, u32_at, u64_at};

const HEADER: u64 = 64;
const SECTION: u64 = 64;
const SEGMENT: u64 = 56;
const SYMBOL: usize = 24;
/// `EM_CUDA`.
const MACHINE: u16 = 190;
/// `SHT_NOBITS`: a section without contents in the file.
const NO_BITS: u32 = 8;
/// `SHT_SYMTAB`.
const SYMBOL_TABLE: u32 = 2;
/// `EI_ABIVERSION` of images whose flags have the architecture in the second byte; before, it was
/// the first.
const NEWER_ABI: u8 = 8;
/// Room for names; no mangled name that was seen is a tenth of it.
const MOST_NAME: usize = 64 << 10;

pub(crate) struct Elf<'a> {
    image: &'a [u8],
    flags: u32,
    abi: u8,
    pub(crate) sections: Vec<Section>,
}

pub(crate) struct Section {
    pub(crate) name: String,
    kind: u32,
    at: u64,
    /// Size in bytes, whether the contents are in the file or not.
    pub(crate) bytes: u64,
    link: u32,
}

pub(crate) struct Symbol {
    pub(crate) name: String,
    info: u8,
    other: u8,
    pub(crate) section: u16,
    pub(crate) bytes: u64,
}

impl Symbol {
    /// `STT_FUNC` with `STO_CUDA_ENTRY`, defined here.
    pub(crate) fn is_kernel(&self) -> bool {
        self.info & 0xf == 2 && self.other & 0x10 != 0 && self.section != 0
    }

    /// `STT_OBJECT`, defined here, seen from outside.
    pub(crate) fn is_variable(&self) -> bool {
        self.info & 0xf == 1 && self.section != 0 && !self.name.is_empty()
    }
}

impl<'a> Elf<'a> {
    pub(crate) fn open(image: &'a [u8]) -> Result<Elf<'a>, CubinError> {
        let header = range(image, "the ELF header", 0, HEADER)?;
        if !header.starts_with(b"\x7fELF\x02\x01") {
            return Err(CubinError::Foreign("it does not begin as one"));
        }
        if u16_at(header, 18) != MACHINE {
            return Err(CubinError::Foreign("it is for another machine"));
        }
        let (at, size) = (u64_at(header, 40), u16_at(header, 58));
        let (count, names) = (u16_at(header, 60), u16_at(header, 62));
        if u64::from(size) != SECTION {
            return Err(CubinError::Value {
                what: "the size of a section's header".to_owned(),
                value: size.into(),
            });
        }
        let table = range(image, "the table of sections", at, u64::from(count) * SECTION)?;
        let raw: Vec<&[u8]> = table.chunks_exact(64).collect();
        let named = raw.get(usize::from(names)).ok_or_else(|| CubinError::Value {
            what: "the section of section names".to_owned(),
            value: names.into(),
        })?;
        let strings = range(image, "the names of sections", u64_at(named, 24), u64_at(named, 32))?;
        let sections = raw.iter().map(|record| {
            Ok(Section {
                name: string(strings, u32_at(record, 0))?,
                kind: u32_at(record, 4),
                at: u64_at(record, 24),
                bytes: u64_at(record, 32),
                link: u32_at(record, 40),
            })
        });
        let sections = sections.collect::<Result<_, CubinError>>()?;
        let elf = Elf { image, flags: u32_at(header, 48), abi: header[8], sections };
        elf.check_extent(header)?;
        Ok(elf)
    }

    /// Checks that everything lies inside the image: its loader gets no size.
    fn check_extent(&self, header: &[u8]) -> Result<(), CubinError> {
        for section in &self.sections {
            self.contents(section)?;
        }
        let (at, size, count) = (u64_at(header, 32), u16_at(header, 54), u16_at(header, 56));
        if count > 0 && u64::from(size) != SEGMENT {
            return Err(CubinError::Value {
                what: "the size of a segment's header".to_owned(),
                value: size.into(),
            });
        }
        let table = range(self.image, "the table of segments", at, u64::from(count) * SEGMENT)?;
        for record in table.chunks_exact(56) {
            range(self.image, "a segment", u64_at(record, 8), u64_at(record, 32))?;
        }
        Ok(())
    }

    /// 90 for compute capability 9.0.
    pub(crate) fn architecture(&self) -> u32 {
        let shift = if self.abi >= NEWER_ABI { 8 } else { 0 };
        self.flags >> shift & 0xff
    }

    /// The contents of a section.
    pub(crate) fn contents(&self, section: &Section) -> Result<&'a [u8], CubinError> {
        if section.kind == NO_BITS {
            return Ok(&[]);
        }
        range(self.image, &format!("section `{}`", section.name), section.at, section.bytes)
    }

    /// All symbols; other tables name them by their index in this table.
    pub(crate) fn symbols(&self) -> Result<Vec<Symbol>, CubinError> {
        let Some(table) = self.sections.iter().find(|section| section.kind == SYMBOL_TABLE) else {
            return Ok(Vec::new());
        };
        let link = usize::try_from(table.link).ok().and_then(|link| self.sections.get(link));
        let strings = link.ok_or_else(|| CubinError::Value {
            what: "the section of symbol names".to_owned(),
            value: table.link.into(),
        })?;
        let strings = self.contents(strings)?;
        let records = self.contents(table)?.chunks_exact(SYMBOL);
        let symbol = |record: &[u8]| {
            Ok(Symbol {
                name: string(strings, u32_at(record, 0))?,
                info: record[4],
                other: record[5],
                section: u16_at(record, 6),
                bytes: u64_at(record, 16),
            })
        };
        records.map(symbol).collect()
    }
}

/// The text up to the next zero.
fn string(strings: &[u8], at: u32) -> Result<String, CubinError> {
    let bad = || CubinError::Value { what: "the place of a name".to_owned(), value: at.into() };
    let rest = usize::try_from(at).ok().and_then(|at| strings.get(at..)).ok_or_else(bad)?;
    let end = rest.iter().take(MOST_NAME).position(|byte| *byte == 0).ok_or_else(bad)?;
    std::str::from_utf8(&rest[..end]).map(str::to_owned).map_err(|_| bad())
}
