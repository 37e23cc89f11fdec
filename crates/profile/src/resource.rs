//! What a profile belongs to, for back ends with profiles of many processes and hosts.

use std::collections::BTreeMap;

/// A process, described by attributes that stay the same as long as it runs.
///
/// The names of attributes are those of [OpenTelemetry's semantic
/// conventions](https://opentelemetry.io/docs/specs/semconv/resource/) where these have one, and begin with `luajit.`
/// otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    attributes: BTreeMap<String, String>,
}

impl Resource {
    /// The attribute that names what the process does: the processes of one service are compared and added up.
    pub const SERVICE_NAME: &'static str = "service.name";

    /// A process of this service with no other attributes.
    pub fn of_service(name: &str) -> Self {
        let mut resource = Self::default();
        resource.set(Self::SERVICE_NAME, name);
        resource
    }

    /// Sets an attribute of the process, in place of an earlier value. An empty value sets nothing.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        let value = value.into();
        match value.is_empty() {
            true => self.attributes.remove(name),
            false => self.attributes.insert(name.to_owned(), value),
        };
    }

    /// The value of an attribute.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }

    /// The service; if none is known, `unknown_service`, as in OpenTelemetry.
    pub fn service(&self) -> &str {
        self.get(Self::SERVICE_NAME).unwrap_or("unknown_service")
    }

    /// All attributes, sorted by name.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_a_name_whatever_is_known() {
        let mut resource = Resource::of_service("shop");
        resource.set("process.pid", "7");
        assert_eq!((resource.service(), resource.get("process.pid")), ("shop", Some("7")));
        resource.set(Resource::SERVICE_NAME, "");
        assert_eq!(resource.service(), "unknown_service");
        assert_eq!(resource.attributes().collect::<Vec<_>>(), [("process.pid", "7")]);
    }
}
