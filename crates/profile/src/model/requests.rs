//! The request or the fiber that a stack was seen in.

use std::fmt;
use std::sync::Arc;

/// The kind of a request's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum RequestKey {
    /// The location of nginx's configuration, as it is written there
    Location,
    /// The route of Kong or APISIX, by its name or its id
    Route,
    /// The plugin of Kong or APISIX that runs, by its name
    Plugin,
    /// The phase of nginx: content, access, log and so on
    Phase,
    /// The server of nginx's configuration, by the first of its names
    Server,
    /// The trace ID of the request, as a variable of nginx has it: see --trace-ids
    #[cfg_attr(feature = "clap", value(name = "trace_id"))]
    TraceId,
    /// The fiber of Tarantool, by its name
    Fiber,
}

impl RequestKey {
    /// All kinds, in the order in which labels have them.
    pub const ALL: [Self; 7] =
        [Self::Location, Self::Route, Self::Plugin, Self::Phase, Self::Server, Self::TraceId, Self::Fiber];

    /// Its name, the same in all formats.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Location => "location",
            Self::Route => "route",
            Self::Plugin => "plugin",
            Self::Phase => "phase",
            Self::Server => "server",
            Self::TraceId => "trace_id",
            Self::Fiber => "fiber",
        }
    }

    /// The kind with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name() == name)
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The labels of a request: at most one of each kind. Each kind has a bounded number of values; only of trace IDs there may be many,
/// and only if the user asks for them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestLabels(Arc<[(RequestKey, Arc<str>)]>);

impl RequestLabels {
    /// A set of labels; [`None`] if there are none.
    pub fn new(labels: impl IntoIterator<Item = (RequestKey, Arc<str>)>) -> Option<Self> {
        let mut labels: Vec<_> = labels.into_iter().collect();
        labels.sort();
        labels.dedup_by_key(|(key, _)| *key);
        (!labels.is_empty()).then(|| Self(labels.into()))
    }

    /// The same labels and one more.
    #[must_use]
    pub fn with(&self, key: RequestKey, value: Arc<str>) -> Self {
        let mut labels: Vec<_> = self.0.iter().filter(|(own, _)| *own != key).cloned().collect();
        labels.push((key, value));
        labels.sort();
        Self(labels.into())
    }

    /// The same labels without those of this kind; [`None`] if there are no others.
    pub fn without(&self, key: RequestKey) -> Option<Self> {
        Self::new(self.0.iter().filter(|(own, _)| *own != key).cloned())
    }

    /// The label of this kind.
    pub fn get(&self, key: RequestKey) -> Option<&Arc<str>> {
        self.0.iter().find(|(own, _)| *own == key).map(|(_, value)| value)
    }

    /// What cost is asked of first: the route, the location, or the fiber.
    pub fn subject(&self) -> Option<(RequestKey, &str)> {
        [RequestKey::Route, RequestKey::Location, RequestKey::Fiber]
            .into_iter()
            .find_map(|key| Some((key, &**self.get(key)?)))
    }

    /// All labels, with the names of their kinds.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(key, value)| (key.name(), &**value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_their_kind() {
        assert_eq!(RequestLabels::new([]), None);
        let labels = [(RequestKey::Phase, "log".into()), (RequestKey::Location, "/a".into())];
        let labels = RequestLabels::new(labels).unwrap();
        assert_eq!(labels.get(RequestKey::Location).map(|value| &**value), Some("/a"));
        assert_eq!(labels.get(RequestKey::Server), None);
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("location", "/a"), ("phase", "log")]);
        let labels = labels.with(RequestKey::Plugin, "cors".into()).with(RequestKey::Phase, "access".into());
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("location", "/a"), ("plugin", "cors"), ("phase", "access")]);
        let labels = labels.without(RequestKey::Plugin).unwrap();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("location", "/a"), ("phase", "access")]);
        assert_eq!(labels.without(RequestKey::Phase).unwrap().without(RequestKey::Location), None);
        for key in RequestKey::ALL {
            assert_eq!(RequestKey::of_name(key.name()), Some(key));
        }
    }
}
