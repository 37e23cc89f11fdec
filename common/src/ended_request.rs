//! Requests of nginx that have ended, counted by location and route.
//!
//! nginx frees each request of a client once, with [`ngx_http_free_request`]; it does not free subrequests with it, nor the
//! requests that lua-nginx-module makes up for timers. At the function's entry the request still has its configuration and its
//! `ngx.ctx`: both go later in the function, with the request's pool.
//!
//! [`ngx_http_free_request`]: https://github.com/nginx/nginx/blob/release-1.22.1/src/http/ngx_http_request.c#L3663-L3762

use crate::request::RequestMarks;
use crate::route::RouteMarks;

/// The most kinds of ended requests of one process: more than people write locations or routes.
pub const MAX_ENDED_REQUESTS: u32 = 8192;

/// What requests that are counted together have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndedRequest {
    /// As [`RequestMarks::locations`].
    pub locations: u64,
    /// As [`RequestMarks::location`].
    pub location: u64,
    /// As [`RequestMarks::servers`].
    pub servers: u64,
    /// As [`RouteMarks::name`].
    pub route: u64,
    /// As [`RouteMarks::identity`].
    pub route_identity: u64,
    /// A [`RequestState`](crate::request::RequestState).
    pub state: u32,
    /// A [`RouteState`](crate::route::RouteState).
    pub route_state: u32,
}

impl EndedRequest {
    /// Requests of which this is known.
    #[inline(always)]
    pub const fn new(request: &RequestMarks, route: &RouteMarks) -> Self {
        Self {
            locations: request.locations,
            location: request.location,
            servers: request.servers,
            route: route.name,
            route_identity: route.identity,
            state: request.state,
            route_state: route.state,
        }
    }

    /// What is known of such a request.
    pub fn marks(&self) -> (RequestMarks, RouteMarks) {
        let Self { locations, location, servers, route, route_identity, state, route_state } = *self;
        let request = RequestMarks { locations, location, servers, state, ..RequestMarks::default() };
        let route = RouteMarks { name: route, identity: route_identity, state: route_state, ..RouteMarks::default() };
        (request, route)
    }
}

/// How many of them have ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedCount {
    /// Their number.
    pub requests: u64,
    /// How long the program has taken to count them, in nanoseconds.
    pub time: u64,
}

const _: () = assert!(size_of::<EndedRequest>() == 5 * 8 + 2 * 4);
const _: () = assert!(size_of::<EndedCount>() == 2 * 8);
