//! Which plugin of Kong or APISIX runs at a sample: the outermost whose code is on the stack.

use lj_trace_profile::Frame;
use lj_trace_profile::model::RequestKey;
use lj_trace_requests::{BoundedNames, plugin_of};

use super::requests::SampleRequest;

/// Finds plugins, and bounds how many names they have.
#[derive(Debug, Default)]
pub struct Plugins {
    names: BoundedNames,
}

impl Plugins {
    /// Labels a sample with its plugin, if it serves a request. The frames go from the innermost outward.
    pub fn label<'a>(&mut self, request: &mut SampleRequest, frames: impl DoubleEndedIterator<Item = &'a Frame>) {
        let Some(labels) = &request.labels else { return };
        for frame in frames.rev() {
            match frame {
                Frame::Lua { chunk, .. } => {
                    if let Some(name) = plugin_of(chunk) {
                        request.labels = Some(labels.with(RequestKey::Plugin, self.names.bounded(name)));
                        return;
                    }
                }
                // A plugin's frame may be among those that are missing here.
                Frame::Unresolved { .. } | Frame::LeftOut { .. } | Frame::Rare => {
                    request.is_plugin_unknown = true;
                    return;
                }
                _ => {}
            }
        }
    }

    /// The number of samples whose plugin is called `[other]`.
    pub fn others(&self) -> u64 {
        self.names.others()
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_profile::model::RequestLabels;

    use super::*;

    fn labelled(frames: &[Frame]) -> SampleRequest {
        let labels = RequestLabels::new([(RequestKey::Route, "shop".into())]);
        let mut request = SampleRequest { labels, ..SampleRequest::default() };
        Plugins::default().label(&mut request, frames.iter());
        request
    }

    fn lua(path: &str) -> Frame {
        Frame::lua(None, format!("@/usr/share/{path}").as_bytes(), 1, Some(2))
    }

    fn plugin(request: &SampleRequest) -> Option<&str> {
        request.labels.as_ref()?.get(RequestKey::Plugin).map(|name| &**name)
    }

    #[test]
    fn the_outermost_plugin_counts() {
        let [jwt, cors] = ["jwt", "cors"].map(|name| lua(&format!("kong/plugins/{name}/handler.lua")));
        let stack = [lua("cjson.lua"), jwt, cors, lua("kong/init.lua")];
        assert_eq!(plugin(&labelled(&stack)), Some("cors"));
        let none = labelled(&stack[3..]);
        assert!(plugin(&none).is_none() && !none.is_plugin_unknown);
    }

    #[test]
    fn where_frames_are_missing_the_plugin_is_not_known() {
        let missing = Frame::Unresolved { reason: "a reason".into() };
        let cors = lua("kong/plugins/cors/handler.lua");
        let hidden = labelled(&[cors.clone(), missing.clone(), lua("kong/init.lua")]);
        assert!(plugin(&hidden).is_none() && hidden.is_plugin_unknown);
        let below = labelled(&[missing, cors, lua("kong/init.lua")]);
        assert_eq!((plugin(&below), below.is_plugin_unknown), (Some("cors"), false));
    }

    #[test]
    fn what_serves_no_request_has_no_plugin() {
        let mut request = SampleRequest::default();
        Plugins::default().label(&mut request, [lua("kong/plugins/cors/handler.lua")].iter());
        assert!(request.labels.is_none());
    }
}
