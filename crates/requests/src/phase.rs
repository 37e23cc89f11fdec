//! The phases of nginx's work on a request in which Lua code runs.
//!
//! `NGX_HTTP_LUA_CONTEXT_*` are bits. New versions have only added bits (`src/ngx_http_lua_common.h` of lua-nginx-module).

use std::fmt;

macro_rules! phases {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal, $main:literal;)*) => {
        /// A phase, under its name in `ngx.get_phase`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RequestPhase {
            $($(#[$doc])* $name,)*
        }

        impl RequestPhase {
            /// All phases.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The phase of this bit; [`None`] if the bit is unknown, or not exactly one bit is set.
            pub const fn from_bits(bits: u32) -> Option<Self> {
                Some(match bits {
                    $($bit => Self::$name,)*
                    _ => return None,
                })
            }

            /// The name of the phase.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Whether code of the phase runs in the VM's main coroutine rather than in a coroutine of its own.
            pub const fn is_on_main_thread(self) -> bool {
                match self {
                    $(Self::$name => $main,)*
                }
            }
        }
    };
}

phases! {
    /// `set_by_lua`.
    Set = 0x1, "set", true;
    /// `rewrite_by_lua`.
    Rewrite = 0x2, "rewrite", false;
    /// `access_by_lua`.
    Access = 0x4, "access", false;
    /// `content_by_lua`.
    Content = 0x8, "content", false;
    /// `log_by_lua`.
    Log = 0x10, "log", true;
    /// `header_filter_by_lua`.
    HeaderFilter = 0x20, "header_filter", true;
    /// `body_filter_by_lua`.
    BodyFilter = 0x40, "body_filter", true;
    /// `ngx.timer`.
    Timer = 0x80, "timer", false;
    /// `init_worker_by_lua`.
    InitWorker = 0x100, "init_worker", true;
    /// `balancer_by_lua`.
    Balancer = 0x200, "balancer", true;
    /// `ssl_certificate_by_lua`.
    SslCert = 0x400, "ssl_cert", false;
    /// `ssl_session_store_by_lua`.
    SslSessionStore = 0x800, "ssl_session_store", true;
    /// `ssl_session_fetch_by_lua`.
    SslSessionFetch = 0x1000, "ssl_session_fetch", false;
    /// `exit_worker_by_lua`.
    ExitWorker = 0x2000, "exit_worker", true;
    /// `ssl_client_hello_by_lua`.
    SslClientHello = 0x4000, "ssl_client_hello", false;
    /// `server_rewrite_by_lua`.
    ServerRewrite = 0x8000, "server_rewrite", false;
    /// `proxy_ssl_verify_by_lua`.
    ProxySslVerify = 0x1_0000, "proxy_ssl_verify", false;
    /// `precontent_by_lua`.
    Precontent = 0x2_0000, "precontent", false;
    /// `proxy_ssl_certificate_by_lua`.
    ProxySslCert = 0x4_0000, "proxy_ssl_cert", false;
}

impl fmt::Display for RequestPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_one_bit() {
        for bit in 0..32 {
            let phase = RequestPhase::from_bits(1 << bit);
            assert_eq!(phase.is_some(), bit < RequestPhase::ALL.len(), "{bit}");
            assert_eq!(RequestPhase::from_bits(1 << bit | 1 << ((bit + 1) % 32)), None);
        }
        assert_eq!(RequestPhase::from_bits(0), None);
        assert_eq!(RequestPhase::Content.to_string(), "content");
    }
}
