//! The certificate authorities that connections over TLS trust.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustls_native_certs::{CertificateResult, load_certs_from_paths, load_native_certs};
use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

#[cfg(feature = "made")]
pub mod made;

/// Variables that name certificates, as in OpenSSL: a file, and folders separated by colons.
const FILE: &str = "SSL_CERT_FILE";
const FOLDERS: &str = "SSL_CERT_DIR";

/// Why the trusted authorities are unknown.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthoritiesError {
    /// The files that the environment names contain no certificates.
    #[error("no certificate of an authority in what {variables} names: {reason}")]
    Environment {
        /// The variables that are set.
        variables: &'static str,
        /// What happened.
        reason: String,
    },
}

/// The authorities that the environment names. If it names none, those of the system. If the system has none (as in a
/// container without `ca-certificates`), those that browsers trust, which lj-trace contains.
///
/// # Errors
/// The environment names some, but none can be read.
pub fn of_system() -> Result<RootCerts, AuthoritiesError> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    of_variables(variable(FILE), variable(FOLDERS))
}

/// The same, with values for `SSL_CERT_FILE` and `SSL_CERT_DIR`.
///
/// # Errors
/// They name some, but none can be read.
pub fn of_variables(file: Option<OsString>, folders: Option<OsString>) -> Result<RootCerts, AuthoritiesError> {
    let variables = match (&file, &folders) {
        (None, None) => return Ok(roots(load_native_certs()).unwrap_or(RootCerts::WebPki)),
        (Some(_), None) => FILE,
        (None, Some(_)) => FOLDERS,
        (Some(_), Some(_)) => "SSL_CERT_FILE or SSL_CERT_DIR",
    };
    let mut found = CertificateResult::default();
    let folders: Vec<PathBuf> = folders.iter().flat_map(env::split_paths).collect();
    let parts = file.iter().map(|file| (Some(Path::new(file)), None));
    for (file, folder) in parts.chain(folders.iter().map(|folder| (None, Some(folder.as_path())))) {
        let part = load_certs_from_paths(file, folder);
        found.certs.extend(part.certs);
        found.errors.extend(part.errors);
    }
    let reason = found.errors.first().map_or_else(|| "nothing in it is one".to_owned(), ToString::to_string);
    roots(found).ok_or(AuthoritiesError::Environment { variables, reason })
}

/// The authorities in a PEM text; [`None`] if it contains no certificate.
pub fn of_pem(text: &[u8]) -> Option<RootCerts> {
    let certificates: Vec<Certificate<'static>> = parse_pem(text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    (!certificates.is_empty()).then(|| RootCerts::from(certificates))
}

/// The authorities that were found, if any.
fn roots(found: CertificateResult) -> Option<RootCerts> {
    let certificates: Vec<Certificate<'static>> =
        found.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    (!certificates.is_empty()).then(|| RootCerts::from(certificates))
}

/// Whether a request failed because the authority of the server's certificate is not trusted.
pub fn is_untrusted(error: &ureq::Error) -> bool {
    // The TLS error is wrapped in other errors, which depend on when it occurs. The signature is wrong if a trusted
    // authority has the same name, for example under its old key.
    let error = error.to_string();
    ["UnknownIssuer", "BadSignature"].iter().any(|reason| error.contains(reason))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn count(roots: &RootCerts) -> usize {
        match roots {
            RootCerts::Specific(certificates) => certificates.len(),
            _ => 0,
        }
    }

    #[test]
    fn files_and_folders_of_the_environment_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let authorities = [made::Authority::new(), made::Authority::new(), made::Authority::new()];
        fs::write(path("one.pem"), authorities[0].pem()).unwrap();
        fs::write(path("two.pem"), format!("{}{}", authorities[1].pem(), authorities[2].pem())).unwrap();
        fs::create_dir(path("folder")).unwrap();
        fs::write(path("folder/00000000.0"), authorities[2].pem()).unwrap();
        fs::create_dir(path("other")).unwrap();
        fs::write(path("other/11111111.0"), authorities[0].pem()).unwrap();
        let value = |name: &str| Some(path(name).into_os_string());
        let both = env::join_paths([path("folder"), path("other")]).unwrap();
        assert_eq!(of_variables(value("one.pem"), None).map(|roots| count(&roots)), Ok(1));
        assert_eq!(of_variables(value("two.pem"), None).map(|roots| count(&roots)), Ok(2));
        assert_eq!(of_variables(None, Some(both)).map(|roots| count(&roots)), Ok(2));
        assert_eq!(of_variables(value("one.pem"), value("folder")).map(|roots| count(&roots)), Ok(2));
        // One of them is enough.
        assert_eq!(of_variables(value("missing.pem"), value("folder")).map(|roots| count(&roots)), Ok(1));
    }

    #[test]
    fn an_environment_without_certificates_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("text.pem"), "no certificate").unwrap();
        for (name, reason) in [("missing.pem", "No such file"), ("text.pem", "nothing in it is one")] {
            let error = of_variables(Some(path(name).into_os_string()), None).unwrap_err().to_string();
            assert!(error.contains("what SSL_CERT_FILE names") && error.contains(reason), "{error}");
        }
        let error = of_variables(None, Some(path("none").into_os_string())).unwrap_err().to_string();
        assert!(error.contains("SSL_CERT_DIR"), "{error}");
    }

    #[test]
    fn without_an_environment_there_are_authorities() {
        assert!(matches!(of_variables(None, None), Ok(RootCerts::Specific(_) | RootCerts::WebPki)));
        assert!(of_pem(b"-----BEGIN PRIVATE KEY-----\n").is_none());
        assert_eq!(of_pem(made::Authority::new().pem().as_bytes()).map(|roots| count(&roots)), Some(1));
    }
}
