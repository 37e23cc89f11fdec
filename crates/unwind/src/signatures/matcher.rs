//! Names functions by what they refer to and by what refers to them.
//!
//! It starts with functions whose names are certain. If the list of calls of a named function equals a list that its name has
//! in the table, the table names the functions that it calls: the function is a witness for these names. So the matcher goes on
//! from function to function. It gives a name if at least two witnesses agree and none says anything else, and to no more than
//! one function. A function's own calls are a witness as well, and must agree in any case.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::code::FunctionReferences;
use super::evidence::{Expectations, MARGIN, Seen, SignatureEvidence};
use super::explore::Program;
use super::table::{Element, NameId, Signature, SignatureTable};
use crate::references::References;

/// The most rounds: each round names at least one function, or is the last one. No build needs more.
const MAX_ROUNDS: usize = 64;

/// What is known about the target of a reference before anything is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A function whose name is certain.
    Named(NameId),
    /// A function that does not belong to LuaJIT.
    Foreign,
    /// A function about which nothing is known.
    Unknown(u64),
}

/// What the witnesses say about one function.
#[derive(Debug, Default)]
struct Heard {
    /// For each name, the witnesses that gave it.
    names: BTreeMap<Element, BTreeSet<u64>>,
    /// Whether a witness gave several names.
    is_contested: bool,
}

struct Matcher<'a> {
    expectations: Expectations,
    /// For each function, the functions that refer to it.
    referrers: BTreeMap<u64, BTreeSet<u64>>,
    table: &'a SignatureTable,
    program: &'a Program,
    names: HashMap<u64, NameId>,
    addresses: HashMap<NameId, u64>,
    /// Where the interpreter begins.
    interpreter: u64,
    /// The evidence for each function at the time of the last change around it.
    judged: BTreeMap<u64, Vec<(NameId, SignatureEvidence)>>,
    /// Functions with a newly named function around them since.
    changed: BTreeSet<u64>,
}

/// The names of functions whose names are not certain from the start.
pub fn names(table: &SignatureTable, program: &Program) -> BTreeMap<u64, NameId> {
    let mut matcher = Matcher {
        expectations: Expectations::of(table),
        referrers: referrers(program),
        table,
        program,
        names: program.certain.clone(),
        addresses: HashMap::new(),
        interpreter: program.interpreter,
        judged: BTreeMap::new(),
        changed: program.functions.keys().copied().collect(),
    };
    matcher.addresses.extend(program.certain.iter().map(|(address, id)| (*id, *address)));
    for _ in 0..MAX_ROUNDS {
        let is_better = matcher.round();
        if !matcher.weigh() && !is_better {
            break;
        }
    }
    // Later names may contradict earlier ones.
    for _ in 0..MAX_ROUNDS {
        if !matcher.take_back() {
            break;
        }
    }
    let is_new = |(address, _): &(&u64, &NameId)| !program.certain.contains_key(*address);
    matcher.names.iter().filter(is_new).map(|(address, id)| (*address, *id)).collect()
}

impl Matcher<'_> {
    fn target(&self, address: u64) -> Target {
        match (self.names.get(&address), self.program.stubs.get(&address)) {
            (Some(id), _) | (None, Some(Some(id))) => Target::Named(*id),
            (None, Some(None)) => Target::Foreign,
            _ if address == References::THROUGH_SLOT => Target::Foreign,
            _ => Target::Unknown(address),
        }
    }

    /// Names functions by their witnesses. Returns whether it named any.
    fn round(&mut self) -> bool {
        let heard = self.hear();
        let mut claims: BTreeMap<NameId, Vec<u64>> = BTreeMap::new();
        for (&address, heard) in &heard {
            if let Some(id) = self.verdict(address, heard) {
                claims.entry(id).or_default().push(address);
            }
        }
        let mut found = false;
        for (id, addresses) in claims {
            if let [address] = addresses[..] {
                self.give(address, id);
                found = true;
            }
        }
        found
    }

    /// Names functions by all evidence. Returns whether it named any.
    fn weigh(&mut self) -> bool {
        for address in std::mem::take(&mut self.changed) {
            let judged = self.program.functions.get(&address).filter(|_| !self.names.contains_key(&address));
            let judged = judged.map(|function| self.judge(address, function)).unwrap_or_default();
            self.judged.insert(address, judged);
        }
        let mut by_name: HashMap<NameId, Vec<(f32, u64)>> = HashMap::new();
        let free = |matcher: &Self, address: u64, id: NameId| {
            !matcher.names.contains_key(&address) && !matcher.addresses.contains_key(&id)
        };
        for (&address, judged) in &self.judged {
            for (id, evidence) in judged.iter().filter(|(id, _)| free(self, address, *id)) {
                by_name.entry(*id).or_default().push((evidence.balance(), address));
            }
        }
        let mut chosen = Vec::new();
        for (&address, judged) in &self.judged {
            for (id, evidence) in judged.iter().filter(|(id, _)| free(self, address, *id)) {
                // A function that is not called from other files may have been inlined: then it looks like its caller.
                if !evidence.is_clear() || !self.table.may_be_given(*id) || !self.table.is_shared(*id) {
                    continue;
                }
                let rivals = |balance: f32| evidence.balance() - balance < MARGIN;
                let is_rivaled = judged
                    .iter()
                    .any(|(other, found)| other != id && free(self, address, *other) && rivals(found.balance()))
                    || by_name[id].iter().any(|(balance, other)| *other != address && rivals(*balance));
                if !is_rivaled {
                    chosen.push((address, *id));
                }
            }
        }
        chosen.iter().for_each(|(address, id)| self.give(*address, *id));
        !chosen.is_empty()
    }

    fn give(&mut self, address: u64, id: NameId) {
        self.names.insert(address, id);
        self.addresses.insert(id, address);
        // The new name adds evidence for its neighbours.
        self.changed.extend(self.referrers.get(&address).into_iter().flatten());
        if let Some(function) = self.program.functions.get(&address) {
            self.changed.extend(function.references.calls.iter().chain(&function.references.addresses));
        }
    }

    /// The names that a function may have, with the evidence for each.
    fn judge(&self, address: u64, function: &FunctionReferences) -> Vec<(NameId, SignatureEvidence)> {
        let seen = self.seen(address, function);
        let is_located = |name| self.addresses.contains_key(&name);
        self.candidates(&seen).into_iter().map(|id| (id, self.expectations.judge(&seen, id, is_located))).collect()
    }

    fn seen(&self, address: u64, function: &FunctionReferences) -> Seen {
        let name = |address: &u64| match self.target(*address) {
            Target::Named(id) => Some(id),
            _ => None,
        };
        let References { calls, addresses, constants } = &function.references;
        Seen {
            callers: self
                .referrers
                .get(&address)
                .into_iter()
                .flatten()
                .filter_map(|caller| self.names.get(caller).copied())
                .collect(),
            callees: calls.iter().chain(addresses).filter_map(name).collect(),
            constants: constants.iter().copied().collect(),
        }
    }

    /// The possible names: callees of the function's known callers, and callers of its known callees.
    fn candidates(&self, seen: &Seen) -> BTreeSet<NameId> {
        let callees = seen.callers.iter().flat_map(|caller| self.expectations.callees(*caller));
        let callers = seen.callees.iter().flat_map(|callee| self.expectations.callers(*callee));
        let is_free = |id: &NameId| !self.addresses.contains_key(id);
        callees.chain(callers).filter(is_free).collect()
    }

    /// Takes back names that are no longer supported. Returns whether there were any.
    fn take_back(&mut self) -> bool {
        let given: Vec<(u64, NameId)> = self
            .names
            .iter()
            .filter(|(address, _)| !self.program.certain.contains_key(*address))
            .map(|(a, id)| (*a, *id))
            .collect();
        let mut wrong = Vec::new();
        for (address, id) in given {
            // Judge the function as if it had no name: would it get the same one?
            self.names.remove(&address);
            self.addresses.remove(&id);
            let heard = self.hear_of(address);
            if self.verdict(address, &heard) != Some(id) && !self.still_fits(address, id) {
                wrong.push(address);
            }
            self.names.insert(address, id);
            self.addresses.insert(id, address);
        }
        for address in &wrong {
            if let Some(id) = self.names.remove(address) {
                self.addresses.remove(&id);
            }
        }
        !wrong.is_empty()
    }

    fn still_fits(&self, address: u64, id: NameId) -> bool {
        let Some(function) = self.program.functions.get(&address) else { return false };
        let seen = self.seen(address, function);
        let is_located = |name| self.addresses.contains_key(&name);
        self.table.is_shared(id) && self.expectations.judge(&seen, id, is_located).is_clear()
    }

    fn hear(&self) -> BTreeMap<u64, Heard> {
        let mut all: BTreeMap<u64, Heard> = BTreeMap::new();
        for &witness in self.names.keys() {
            self.listen(witness, &mut all);
        }
        all
    }

    fn hear_of(&self, address: u64) -> Heard {
        let mut all = BTreeMap::new();
        for &witness in self.names.keys() {
            let function = self.program.functions.get(&witness);
            let refers = |function: &FunctionReferences| {
                function.references.calls.contains(&address) || function.references.addresses.contains(&address)
            };
            if function.is_some_and(refers) {
                self.listen(witness, &mut all);
            }
        }
        all.remove(&address).unwrap_or_default()
    }

    /// Adds what one function says about the functions that it refers to.
    fn listen(&self, witness: u64, all: &mut BTreeMap<u64, Heard>) {
        let Some(function) = self.program.functions.get(&witness) else { return };
        let Some(signature) = self.names.get(&witness).and_then(|id| self.table.signature(*id)) else { return };
        let References { calls, addresses, .. } = &function.references;
        for (found, known) in [(calls, &signature.calls), (addresses, &signature.addresses)] {
            let mut said: BTreeMap<u64, BTreeSet<Element>> = BTreeMap::new();
            for list in known {
                for (address, element) in self.align(found, list).into_iter().flatten() {
                    said.entry(address).or_default().insert(element);
                }
            }
            for (address, elements) in said {
                let heard = all.entry(address).or_default();
                heard.is_contested |= elements.len() > 1;
                for element in elements {
                    heard.names.entry(element).or_default().insert(witness);
                }
            }
        }
    }

    /// The meaning of each unknown reference if `found` is this list of references; [`None`] if it is not.
    fn align(&self, found: &[u64], list: &[Element]) -> Option<HashMap<u64, Element>> {
        if found.len() != list.len() {
            return None;
        }
        let mut meant: HashMap<u64, Element> = HashMap::new();
        let mut owners: HashMap<NameId, u64> = HashMap::new();
        for (&address, &element) in found.iter().zip(list) {
            match (self.target(address), element) {
                (Target::Named(id), Some(wanted)) if id == wanted => {}
                (Target::Foreign, None) => {}
                (Target::Unknown(address), element) => {
                    // One address is one function, and one name has one address.
                    if *meant.entry(address).or_insert(element) != element {
                        return None;
                    }
                    if let Some(id) = element
                        && (self.addresses.contains_key(&id) || *owners.entry(id).or_insert(address) != address)
                    {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        Some(meant)
    }

    /// The name of a function, if the witnesses suffice.
    fn verdict(&self, address: u64, heard: &Heard) -> Option<NameId> {
        let [(Some(id), callers)] = heard.names.iter().collect::<Vec<_>>()[..] else { return None };
        let signature = self.table.signature(*id)?;
        if heard.is_contested || self.addresses.contains_key(id) || callers.contains(&address) {
            return None;
        }
        let function = self.program.functions.get(&address)?;
        let judged = self.judge(address, function);
        let (_, evidence) = judged.iter().find(|(judged, _)| judged == id)?;
        // The interpreter's code is the same with every compiler, and its whole list of calls matched.
        let is_shared = self.table.is_shared(*id);
        if is_shared && callers.contains(&self.interpreter) && !signature.is_ambiguous {
            return (evidence.balance() >= 0.0).then_some(*id);
        }
        let suffices = match self.own(function, signature) {
            Some(own) => callers.len() + own >= 2,
            None => is_shared && callers.len() >= 2,
        };
        if !suffices || !self.table.may_be_given(*id) {
            return None;
        }
        // Two functions whose calls were swapped would get each other's names.
        let is_best = judged.iter().all(|(other, found)| other == id || found.balance() < evidence.balance());
        (is_best && evidence.confirms()).then_some(*id)
    }

    /// Whether a function's own code fits this signature: [`None`] if it does not, else the number of witnesses that
    /// this is worth.
    fn own(&self, function: &FunctionReferences, signature: &Signature) -> Option<usize> {
        let References { calls, addresses, constants } = &function.references;
        let fits =
            |found: &[u64], known: &BTreeSet<Vec<Element>>| known.iter().any(|list| self.align(found, list).is_some());
        if !fits(calls, &signature.calls) || !fits(addresses, &signature.addresses) {
            return None;
        }
        let known = calls.iter().chain(addresses).filter(|&&address| matches!(self.target(address), Target::Named(_)));
        let is_telling = known.collect::<BTreeSet<_>>().len() >= 2;
        let has_constants = constants.len() >= 2 && signature.constants.contains(constants);
        Some(usize::from(is_telling || has_constants))
    }
}

fn referrers(program: &Program) -> BTreeMap<u64, BTreeSet<u64>> {
    let mut referrers: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (&address, function) in &program.functions {
        let References { calls, addresses, .. } = &function.references;
        for target in calls.iter().chain(addresses) {
            referrers.entry(*target).or_default().insert(address);
        }
    }
    referrers
}
