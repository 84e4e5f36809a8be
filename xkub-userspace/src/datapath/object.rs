//! The embedded eBPF object: loading an instance with its constants, and reading constants back.

use std::{
    io,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Array, Map, MapData, MapError, MapInfo, MapType},
    programs::{ProgramError, SchedClassifier, Xdp},
};
use aya_obj::{Object, ParseError};
use thiserror::Error;
use tracing::debug;
use xkub_common::{config::Config, map, program};

use super::{settings::DEFAULT_FLOW_ENTRIES, sys::ProgramInfo};

/// The object as it was built with this program.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xkub-ebpf"));

/// Tells one build of the programs from another: FNV-1a over the embedded object.
pub(super) fn build() -> u32 {
    static BUILD: LazyLock<u32> = LazyLock::new(|| {
        OBJECT.iter().fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        })
    });
    *BUILD
}

/// Why an instance can't be had, or read.
#[derive(Debug, Error)]
pub enum ObjectError {
    /// The embedded object can't be read: a broken build.
    #[error("the embedded eBPF object can't be read")]
    Parse(#[source] ParseError),
    /// The maps can't be made.
    #[error("the eBPF maps can't be made")]
    Create(#[source] Box<EbpfError>),
    /// The embedded object lacks a program or a map: a broken build.
    #[error("the embedded eBPF object has no {0}")]
    Absent(&'static str),
    /// The kernel's verifier, or its memory, said no.
    #[error("the kernel refused program {name}: {reason}; XKUB_LOG=debug shows the verifier's log")]
    Refused {
        /// The program.
        name: &'static str,
        /// Why.
        reason: io::Error,
    },
    /// The program can't be loaded for another reason.
    #[error("program {name} can't be loaded")]
    Load {
        /// The program.
        name: &'static str,
        /// Why.
        #[source]
        source: Box<ProgramError>,
    },
    /// A program has no constants of ours.
    #[error("program {0} was loaded by another version of xkub; attach again")]
    ForeignConstants(String),
    /// A map can't be read.
    #[error("map {name} can't be read")]
    Map {
        /// The map.
        name: String,
        /// Why.
        #[source]
        source: Box<MapError>,
    },
}

/// Which maps an instance shall use.
#[derive(Clone, Debug)]
pub struct Maps {
    /// Room for remembered flows, per family.
    pub flow_entries: u32,
    /// Where maps are pinned, by name. What is pinned there already is used as it is, unchecked; what is not
    /// is made and pinned. A map that is not named here is the instance's own.
    pub pins: Vec<(&'static str, PathBuf)>,
}

impl Default for Maps {
    fn default() -> Self {
        Self {
            flow_entries: DEFAULT_FLOW_ENTRIES,
            pins: Vec::new(),
        }
    }
}

/// One set of constants with its maps; its programs are loaded when they are asked for.
///
/// Dropping it unloads the programs that nothing else holds.
#[derive(Debug)]
pub struct Instance {
    /// aya's view of it.
    pub ebpf: Ebpf,
}

/// Makes an instance with these constants, of this build. No program is in the kernel yet.
///
/// # Errors
/// [`ObjectError::Create`].
pub fn load(config: &Config, maps: &Maps) -> Result<Instance, ObjectError> {
    let mut loader = EbpfLoader::new();
    let config = Config {
        build: build(),
        ..*config
    };
    loader
        .override_global(map::CONFIG, &config, true)
        .map_max_entries(map::FLOWS_V4, maps.flow_entries)
        .map_max_entries(map::FLOWS_V6, maps.flow_entries);
    for (name, path) in &maps.pins {
        loader.map_pin_path(name, path.as_path());
    }
    let ebpf = loader
        .load(OBJECT)
        .map_err(|error| ObjectError::Create(Box::new(error)))?;
    Ok(Instance { ebpf })
}

impl Instance {
    /// A TC program, [`program::INGRESS`] or [`program::EGRESS`], loaded.
    ///
    /// # Errors
    /// [`ObjectError::Refused`], [`ObjectError::Load`], [`ObjectError::Absent`].
    pub fn classifier(&mut self, name: &'static str) -> Result<&mut SchedClassifier, ObjectError> {
        let program: &mut SchedClassifier = self
            .ebpf
            .program_mut(name)
            .and_then(|program| program.try_into().ok())
            .ok_or(ObjectError::Absent(name))?;
        if program.fd().is_err() {
            program.load().map_err(|error| refusal(name, error))?;
        }
        Ok(program)
    }

    /// Pins the read-only map.
    pub(super) fn pin_constants(&self, path: &Path) -> Result<(), ObjectError> {
        let map = self
            .ebpf
            .map(map::CONSTANTS)
            .ok_or(ObjectError::Absent(map::CONSTANTS))?;
        map.pin(path).map_err(|error| ObjectError::Map {
            name: map::CONSTANTS.to_owned(),
            source: Box::new(MapError::PinError {
                name: Some(map::CONSTANTS.to_owned()),
                error,
            }),
        })
    }

    /// The XDP program for frames in one buffer, loaded.
    ///
    /// # Errors
    /// As [`Self::classifier`].
    pub fn xdp(&mut self) -> Result<&mut Xdp, ObjectError> {
        self.xdp_program(program::XDP)
    }

    /// The XDP program for frames in several buffers, loaded. Linux 5.18 or newer.
    ///
    /// # Errors
    /// As [`Self::classifier`].
    pub fn xdp_frags(&mut self) -> Result<&mut Xdp, ObjectError> {
        self.xdp_program(program::XDP_FRAGS)
    }

    fn xdp_program(&mut self, name: &'static str) -> Result<&mut Xdp, ObjectError> {
        let program: &mut Xdp = self
            .ebpf
            .program_mut(name)
            .and_then(|program| program.try_into().ok())
            .ok_or(ObjectError::Absent(name))?;
        if program.fd().is_err() {
            program.load().map_err(|error| refusal(name, error))?;
        }
        Ok(program)
    }
}

fn refusal(name: &'static str, error: ProgramError) -> ObjectError {
    match error {
        ProgramError::LoadError {
            io_error: reason,
            verifier_log,
        } => {
            debug!(name, %verifier_log, "program refused");
            ObjectError::Refused { name, reason }
        }
        other => ObjectError::Load {
            name,
            source: Box::new(other),
        },
    }
}

/// What decides whether an existing map can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapShape {
    /// `enum bpf_map_type`.
    pub map_type: u32,
    /// Bytes.
    pub key_size: u32,
    /// Bytes.
    pub value_size: u32,
    /// How many.
    pub max_entries: u32,
}

impl MapShape {
    /// The shape of a map in the kernel.
    ///
    /// # Errors
    /// [`MapError`]: a type that aya does not know.
    pub fn of(info: &MapInfo) -> Result<Self, MapError> {
        Ok(Self {
            map_type: info.map_type()? as u32,
            key_size: info.key_size(),
            value_size: info.value_size(),
            max_entries: info.max_entries(),
        })
    }
}

/// The shapes that the pinned maps shall have.
///
/// # Errors
/// [`ObjectError::Parse`], [`ObjectError::Absent`].
pub fn map_shapes(flow_entries: u32) -> Result<Vec<(&'static str, MapShape)>, ObjectError> {
    let object = Object::parse(OBJECT).map_err(ObjectError::Parse)?;
    map::PINNED
        .into_iter()
        .map(|name| {
            let definition = object.maps.get(name).ok_or(ObjectError::Absent(name))?;
            let max_entries = match name {
                map::FLOWS_V4 | map::FLOWS_V6 => flow_entries,
                _ => definition.max_entries(),
            };
            let shape = MapShape {
                map_type: definition.map_type(),
                key_size: definition.key_size(),
                value_size: definition.value_size(),
                max_entries,
            };
            Ok((name, shape))
        })
        .collect()
}

/// Reads the constants of a loaded program. They should be pinned at `pin`; otherwise they are looked for by
/// id, which takes `CAP_SYS_ADMIN`.
pub(super) fn constants(pin: &Path, program: &ProgramInfo) -> Result<Config, ObjectError> {
    let unreadable = |source| ObjectError::Map {
        name: map::CONSTANTS.to_owned(),
        source: Box::new(source),
    };
    let pinned = MapData::from_pin(pin).ok().map(Ok);
    let by_id = program.map_ids.iter().map(|id| MapData::from_id(*id));
    for data in pinned.into_iter().chain(by_id) {
        let data = data.map_err(unreadable)?;
        let info = data.info().map_err(unreadable)?;
        let is_constants = info.name() == map::CONSTANTS.as_bytes()
            && matches!(info.map_type(), Ok(MapType::Array))
            && usize::try_from(info.value_size()) == Ok(size_of::<Config>());
        if is_constants {
            let array = Array::<_, Config>::try_from(Map::Array(data)).map_err(unreadable)?;
            return array.get(&0, 0).map_err(unreadable);
        }
    }
    Err(ObjectError::ForeignConstants(program.name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_what_we_look_for() {
        let object = Object::parse(OBJECT).unwrap();
        for name in [
            program::INGRESS,
            program::EGRESS,
            program::XDP,
            program::XDP_FRAGS,
        ] {
            assert!(object.programs.contains_key(name), "{name}");
        }
        // `constants` takes the whole map for the Config.
        let constants = &object.maps[map::CONSTANTS];
        assert_eq!(constants.data().len(), size_of::<Config>());
        assert_eq!(map_shapes(7).unwrap().len(), map::PINNED.len());
    }
}
