//! Authorities for tests, and servers with certificates of theirs.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;

/// An authority that nobody trusts yet.
pub struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Panics
    /// The system has no random numbers.
    pub fn new() -> Self {
        Self::named("authority of a test")
    }

    /// Creates an authority with this name.
    ///
    /// # Panics
    /// The system has no random numbers.
    pub fn named(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("random numbers for a key");
        let certificate = params.self_signed(&key).expect("a certificate of its own key");
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// Its certificate (PEM).
    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// The TLS configuration of a server with this address.
    ///
    /// # Panics
    /// The system has no random numbers.
    pub fn server(&self, address: IpAddr) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("random numbers for a key");
        let params = CertificateParams::new([address.to_string()]).expect("an address is a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate of a known key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has all versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .expect("the key of the certificate");
        Arc::new(config)
    }
}
