//! Halves requests that are too large. The tables of each half have only what the half needs.

use prost::Message as _;

use super::dictionary::DictionaryBuilder;
use super::message::{
    Dictionary, ExportRequest, Location, Mapping, Profile, ResourceProfiles, ScopeProfiles, ValueType,
};
use super::request;
use crate::encode::gunzip;
use crate::{Amount, Request};

/// Turns a message into as many requests as it takes to keep each below `limit` bytes before compression. A single
/// sample is sent whatever its size.
pub fn fitting(
    message: ExportRequest,
    amount: Amount,
    profiles: u64,
    time: [u64; 2],
    limit: usize,
    into: &mut Vec<Request>,
) {
    if message.encoded_len() > limit
        && let Some(halves) = halves(&message)
    {
        for half in halves {
            let (amount, profiles) = of_message(&half);
            fitting(half, amount, profiles, time, limit, into);
        }
        return;
    }
    into.push(request(&message, amount, profiles, time));
}

/// The two halves of a request, if it can be halved.
pub fn split(whole: &Request, limit: usize) -> Option<Vec<Request>> {
    let bytes = gunzip(&whole.body, limit)?;
    let message = ExportRequest::decode(bytes.as_slice()).ok()?;
    let request_of = |half: &ExportRequest| {
        let (amount, profiles) = of_message(half);
        request(half, amount, profiles, whole.about.time)
    };
    Some(halves(&message)?.iter().map(request_of).collect())
}

/// The amount in a message, and its number of profiles.
pub fn of_message(message: &ExportRequest) -> (Amount, u64) {
    let (mut amount, mut count) = (Amount::NONE, 0);
    let Some(dictionary) = &message.dictionary else { return (amount, 0) };
    for profile in profiles(message) {
        count += 1;
        let name = profile.sample_type.and_then(|kind| text(dictionary, kind.type_strindex));
        let values = profile.samples.iter().flat_map(|sample| &sample.values).map(|&value| value.unsigned_abs());
        let sum = values.clone().fold(0, u64::saturating_add);
        match name {
            Some("samples") => {
                amount.cpu.count = amount.cpu.count.saturating_add(sum);
                let period = profile.period.unsigned_abs();
                let time = values.map(|value| value.saturating_mul(period)).fold(0, u64::saturating_add);
                amount.cpu.sum = amount.cpu.sum.saturating_add(time);
            }
            Some("alloc_objects") => amount.allocations.count = amount.allocations.count.saturating_add(sum),
            Some("alloc_space") => amount.allocations.sum = amount.allocations.sum.saturating_add(sum),
            _ => {}
        }
    }
    (amount, count)
}

fn profiles(message: &ExportRequest) -> impl Iterator<Item = &Profile> {
    message.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles).flat_map(|scope| &scope.profiles)
}

fn text(dictionary: &Dictionary, index: i32) -> Option<&str> {
    dictionary.string_table.get(usize::try_from(index).ok()?).map(String::as_str)
}

/// Two halves of the profiles, each with its process; a single profile is halved by its samples.
fn halves(message: &ExportRequest) -> Option<[ExportRequest; 2]> {
    let old = message.dictionary.as_ref()?;
    let mut all: Vec<(usize, usize, Profile)> = Vec::new();
    for (resource_index, resource) in message.resource_profiles.iter().enumerate() {
        for (scope_index, scope) in resource.scope_profiles.iter().enumerate() {
            all.extend(scope.profiles.iter().map(|profile| (resource_index, scope_index, profile.clone())));
        }
    }
    let second = match all.as_mut_slice() {
        [] => return None,
        [(resource, scope, profile)] => {
            let half = profile.samples.split_off(profile.samples.len() / 2);
            if profile.samples.is_empty() || half.is_empty() {
                return None;
            }
            let profile_id = fastrand::u128(1..).to_be_bytes().to_vec();
            vec![(*resource, *scope, Profile { samples: half, profile_id, ..profile.clone() })]
        }
        // Both halves have at least one profile.
        _ => all.split_off(all.len() / 2),
    };
    Some([rebuilt(message, old, all)?, rebuilt(message, old, second)?])
}

/// A message with these profiles. [`None`] if it refers to missing entries, because the disk that it came from is
/// damaged.
fn rebuilt(message: &ExportRequest, old: &Dictionary, profiles: Vec<(usize, usize, Profile)>) -> Option<ExportRequest> {
    let mut copy = Copier { old, new: DictionaryBuilder::default() };
    let mut resource_profiles: Vec<ResourceProfiles> = Vec::new();
    let mut last = None;
    for (resource_index, scope_index, mut profile) in profiles {
        for kind in [&mut profile.sample_type, &mut profile.period_type].into_iter().flatten() {
            *kind = ValueType {
                type_strindex: copy.string(kind.type_strindex)?,
                unit_strindex: copy.string(kind.unit_strindex)?,
            };
        }
        for sample in &mut profile.samples {
            sample.stack_index = copy.stack(sample.stack_index)?;
            for index in &mut sample.attribute_indices {
                *index = copy.attribute(*index)?;
            }
        }
        if last != Some((resource_index, scope_index)) {
            last = Some((resource_index, scope_index));
            let resource = message.resource_profiles.get(resource_index)?;
            let scope = resource.scope_profiles.get(scope_index)?.scope.clone();
            let scope_profiles = vec![ScopeProfiles { scope, profiles: Vec::new() }];
            resource_profiles.push(ResourceProfiles { resource: resource.resource.clone(), scope_profiles });
        }
        resource_profiles.last_mut()?.scope_profiles.last_mut()?.profiles.push(profile);
    }
    Some(ExportRequest { resource_profiles, dictionary: Some(copy.new.finish()) })
}

/// Copies referenced entries from one dictionary to another.
struct Copier<'a> {
    old: &'a Dictionary,
    new: DictionaryBuilder,
}

impl Copier<'_> {
    fn string(&mut self, index: i32) -> Option<i32> {
        Some(self.new.string(text(self.old, index)?))
    }

    fn attribute(&mut self, index: i32) -> Option<i32> {
        let attribute = self.old.attribute_table.get(usize::try_from(index).ok()?)?;
        let key = text(self.old, attribute.key_strindex)?;
        Some(self.new.attribute(key, attribute.value.clone()?))
    }

    fn attributes(&mut self, indices: &[i32]) -> Option<Vec<i32>> {
        indices.iter().map(|index| self.attribute(*index)).collect()
    }

    fn mapping(&mut self, index: i32) -> Option<i32> {
        if index == 0 {
            return Some(0);
        }
        let mapping = self.old.mapping_table.get(usize::try_from(index).ok()?)?;
        let filename_strindex = self.string(mapping.filename_strindex)?;
        let attribute_indices = self.attributes(&mapping.attribute_indices)?;
        Some(self.new.mapping(Mapping { filename_strindex, attribute_indices, ..mapping.clone() }))
    }

    fn location(&mut self, index: i32) -> Option<i32> {
        let location = self.old.location_table.get(usize::try_from(index).ok()?)?;
        let mut lines = location.lines.clone();
        for line in &mut lines {
            let function = self.old.function_table.get(usize::try_from(line.function_index).ok()?)?;
            let (name, file) = (text(self.old, function.name_strindex)?, text(self.old, function.filename_strindex)?);
            line.function_index = self.new.function(name, file, function.start_line);
        }
        let mapping_index = self.mapping(location.mapping_index)?;
        let attribute_indices = self.attributes(&location.attribute_indices)?;
        Some(self.new.location(Location { mapping_index, address: location.address, lines, attribute_indices }))
    }

    fn stack(&mut self, index: i32) -> Option<i32> {
        let stack = self.old.stack_table.get(usize::try_from(index).ok()?)?;
        let locations: Option<Vec<i32>> = stack.location_indices.iter().map(|index| self.location(*index)).collect();
        Some(self.new.stack(locations?))
    }
}
