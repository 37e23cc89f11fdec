//! Readable names for mangled Rust and C++ symbols.

/// The name as a person would write it: without hashes, parameters and return types. A name that is not mangled, or
/// cannot be parsed, is returned unchanged.
pub fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    cpp(name).unwrap_or_else(|| name.to_owned())
}

fn cpp(name: &str) -> Option<String> {
    name.starts_with("_Z").then_some(())?;
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    symbol.demangle_with_options(&cpp_demangle::DemangleOptions::new().no_params().no_return_type()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demangles_rust_and_cpp_and_leaves_c() {
        assert_eq!(demangle("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE"), "core::fmt::Formatter::pad");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(demangle("_ZNSt6vectorIiSaIiEE9push_backERKi"), "std::vector<int, std::allocator<int> >::push_back");
        assert_eq!(demangle("lua_pcall"), "lua_pcall");
        assert_eq!(demangle("_Znonsense"), "_Znonsense");
    }
}
