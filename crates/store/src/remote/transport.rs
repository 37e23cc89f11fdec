//! Sends the requests of `object_store` by ureq, so that lj-trace has only one HTTP client and one TLS library.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use ureq::Agent;
use ureq::tls::TlsConfig;

/// Creates clients.
#[derive(Debug)]
pub struct UreqConnector;

/// A client. Its thread does nothing but send files, so it may block.
#[derive(Debug)]
struct UreqService(Agent);

/// The time limits for a connection and for a request.
const CONNECT: Duration = Duration::from_secs(10);
const REQUEST: Duration = Duration::from_secs(120);

/// The most bytes of a response. Responses to uploads are short.
const ANSWER: u64 = 1 << 20;

impl HttpConnector for UreqConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let authorities = lj_trace_authorities::of_system()
            .map_err(|error| object_store::Error::Generic { store: "TLS", source: error.into() })?;
        let config = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(authorities).build())
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(REQUEST))
            .max_redirects(0)
            .http_status_as_error(false)
            .build();
        Ok(HttpClient::new(UreqService(config.into())))
    }
}

fn failed(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Request,
    };
    HttpError::new(kind, error)
}

#[async_trait::async_trait]
impl HttpService for UreqService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let request = ureq::http::Request::from_parts(parts, bytes.to_vec());
        let response = self.0.run(request).map_err(failed)?;
        let (parts, mut body) = response.into_parts();
        let bytes = body.with_config().limit(ANSWER).read_to_vec().map_err(failed)?;
        Ok(HttpResponse::from_parts(
            parts,
            HttpResponseBody::new(Full::new(Bytes::from(bytes)).map_err(|never| match never {})),
        ))
    }
}
