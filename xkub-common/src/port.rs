//! Ports, and sets of them, in the byte order that they have in a packet.
//!
//! Kernels before 6.8 forget the bounds of a number when its bytes are swapped, and then reject it as an index; and not
//! swapping costs nothing.

/// A port, or an echo identifier, as it lies in a packet.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Port(u16);

impl Port {
    /// 0, of protocols that have no ports.
    pub const NONE: Self = Self(0);

    /// The port with a number.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number.to_be())
    }

    /// The port that a plain load from a packet has found.
    #[must_use]
    #[inline(always)]
    pub const fn from_packet(raw: u16) -> Self {
        Self(raw)
    }

    /// As it lies in the packet.
    #[must_use]
    #[inline(always)]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        u16::from_be(self.0)
    }

    /// An index of its own among 65,536.
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl core::fmt::Debug for Port {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{}", self.number())
    }
}

/// A set of ports as one bit each, so that a range costs what a port costs: one load.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PortSet {
    words: [u64; Self::WORDS],
}

impl PortSet {
    const BITS: usize = u64::BITS as usize;
    const WORDS: usize = (u16::MAX as usize + 1) / Self::BITS;

    /// No port.
    pub const EMPTY: Self = Self {
        words: [0; Self::WORDS],
    };

    /// Adds the port with a number.
    pub const fn insert(&mut self, number: u16) {
        let index = Port::new(number).index();
        self.words[index / Self::BITS] |= 1 << (index % Self::BITS);
    }

    /// Whether a port is in the set.
    #[must_use]
    #[inline(always)]
    pub fn contains(&self, port: Port) -> bool {
        let index = port.index();
        let word = &self.words[index / Self::BITS];
        // SAFETY: a valid reference is a valid pointer. The read is volatile because in the kernel the set
        // is a program constant that the loader fills in after the compiler has seen it as empty.
        let word = unsafe { core::ptr::read_volatile(word) };
        word >> (index % Self::BITS) & 1 == 1
    }

    /// The ports' numbers, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..=u16::MAX).filter(|number| self.contains(Port::new(*number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_into_it() {
        let numbers = [0, 1, 63, 64, 255, 256, 8473, 10_250, 65_535];
        let mut set = PortSet::EMPTY;
        for number in numbers {
            set.insert(number);
        }
        assert!(set.iter().eq(numbers));
        assert!(!set.contains(Port::new(8472)));
    }
}
