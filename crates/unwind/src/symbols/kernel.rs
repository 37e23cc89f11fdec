//! Names of the kernel's functions.

use std::io::BufRead;
use std::sync::{Arc, OnceLock};

/// The symbols of the running kernel and its modules, read at the first request.
#[derive(Debug, Default)]
pub struct KernelSymbols {
    symbols: OnceLock<Symbols>,
}

/// Symbols sorted by address.
#[derive(Debug, Default)]
struct Symbols(Vec<(u64, Arc<str>)>);

impl KernelSymbols {
    /// The function at an address; `kernel` if the symbols are hidden (`kernel.kptr_restrict`), or no function is there.
    pub fn symbol(&self, address: u64) -> Arc<str> {
        let symbols = self.symbols.get_or_init(|| match std::fs::File::open("/proc/kallsyms") {
            Ok(file) => Symbols::read(std::io::BufReader::new(file)),
            Err(_) => Symbols::default(),
        });
        symbols.at(address).unwrap_or_else(|| "kernel".into())
    }
}

impl Symbols {
    /// Reads lines such as `ffffffff81000000 T _text`.
    fn read(lines: impl BufRead) -> Self {
        let symbol = |line: String| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
            // For users who may not see them, all addresses are zero.
            (is_code && address != 0).then(|| words.next().map(|name| (address, Arc::from(name))))?
        };
        let mut symbols: Vec<(u64, Arc<str>)> = lines.lines().map_while(Result::ok).filter_map(symbol).collect();
        symbols.sort_by_key(|(address, _)| *address);
        Self(symbols)
    }

    fn at(&self, address: u64) -> Option<Arc<str>> {
        let next = self.0.partition_point(|(start, _)| *start <= address);
        // Anything may follow the last symbol, because its size is not known.
        (next < self.0.len()).then(|| self.0.get(next.checked_sub(1)?).map(|(_, name)| Arc::clone(name)))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_symbol_below_it() {
        let text = "ffffffff81000100 t second\nffffffff81000000 T first\nffffffff81000080 d data\n\
                    ffffffff81000200 T last [module]\nbroken\n";
        let symbols = Symbols::read(text.as_bytes());
        let at = |address| symbols.at(address).map(|name| name.to_string());
        assert_eq!(at(0xffff_ffff_8100_00ff).as_deref(), Some("first"));
        assert_eq!(at(0xffff_ffff_8100_0100).as_deref(), Some("second"));
        assert_eq!(at(0xffff_ffff_80ff_ffff), None);
        assert_eq!(at(0xffff_ffff_8100_0200), None);
        assert_eq!(Symbols::read("0000000000000000 T hidden\n0000000000000000 T too\n".as_bytes()).at(1), None);
    }
}
