//! Proves where fibers keep their id, their name and their stack, from fibers that are alive.
//!
//! No offset is taken from a table: builds differ. The cord has the ring of all fibers, and within itself the fiber of the
//! scheduler, whose name is "sched" and whose id is 1. A name of up to 39 bytes is in the fiber itself, right behind the
//! pointer to it. A fiber begins with its saved stack pointer, which lies in its stack. Fibers are in the ring in the order
//! of their ids. Each place has to be the same in all fibers that are looked at.
//!
//! Sources: [`struct fiber`], [`fiber_set_name_n`] and [`cord_create`].
//!
//! [`struct fiber`]: https://github.com/tarantool/tarantool/blob/67428d092e91665dcff3b3108b8423e9f1e09176/src/lib/core/fiber.h#L625
//! [`fiber_set_name_n`]: https://github.com/tarantool/tarantool/blob/67428d092e91665dcff3b3108b8423e9f1e09176/src/lib/core/fiber.c#L1218
//! [`cord_create`]: https://github.com/tarantool/tarantool/blob/67428d092e91665dcff3b3108b8423e9f1e09176/src/lib/core/fiber.c#L1810

use lj_trace_common::fiber::FiberLayout;
use lj_trace_common::memory::ReadMemory;

use super::ring::ring;

/// The words of a cord to look at for its ring of fibers,
const CORD_HEAD: usize = 64;
/// and for the scheduler's fiber, which comes after a table of free memory.
const CORD: usize = 2048;

/// The fibers to look at: the oldest ones, which are the least likely to end meanwhile.
const MOST_FIBERS: usize = 48;

/// With fewer fibers, nothing is proven: there are too many places that fit one.
const LEAST_FIBERS: usize = 2;

/// The same if there are newer ones, which do not fit.
const LEAST_OLD_FIBERS: usize = 4;

/// The words of a fiber to look at before and after its node in the ring.
const BEFORE: usize = 64;
/// See [`BEFORE`].
const AFTER: usize = 80;

/// The least and the largest size of a stack, in bytes. Without other orders, it has half a megabyte.
const STACKS: std::ops::RangeInclusive<u64> = 1 << 13..=1 << 30;

/// The page size: stacks and the blocks of memory that they are in begin at a page.
const PAGE: u64 = 4096;

/// The scheduler's id (`FIBER_ID_SCHED`).
const SCHEDULER: u32 = 1;

/// Where the fibers of a cord are, and what they look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvenFibers {
    /// The places in each fiber.
    pub layout: FiberLayout,
    /// Address of the ring of all fibers that are alive.
    pub alive: u64,
    /// Offset in a fiber of its node in that ring.
    pub link: u64,
}

/// Why the places are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unproven(pub &'static str);

/// A fiber's memory around its node in a ring.
struct Around {
    node: u64,
    words: [u64; BEFORE + AFTER],
}

impl Around {
    fn read(memory: &impl ReadMemory, node: u64) -> Self {
        let mut words = [0; BEFORE + AFTER];
        // The first fiber of all has nothing before it, and the last one nothing after it.
        read_readable(memory, node.wrapping_sub(BEFORE as u64 * 8), &mut words);
        Self { node, words }
    }

    /// The word at this offset from the node, in words.
    fn word(&self, offset: isize) -> Option<u64> {
        self.words
            .get(offset.checked_add(BEFORE as isize)?.try_into().ok().filter(|index: &usize| *index < BEFORE + AFTER)?)
            .copied()
    }

    /// The four bytes at this offset from the node, in units of four.
    fn half(&self, offset: isize) -> Option<u32> {
        let word = self.word(offset.div_euclid(2))?;
        Some((word >> (32 * offset.rem_euclid(2))) as u32)
    }
}

/// Reads words, at once if possible. Those that cannot be read are 0.
fn read_readable(memory: &impl ReadMemory, start: u64, words: &mut [u64]) {
    if memory.read_words(start, words).is_err() {
        for (word, at) in words.iter_mut().zip((0..).map(|number| start.wrapping_add(number * 8))) {
            *word = memory.read(at).unwrap_or(0);
        }
    }
}

/// The places of the fibers of the cord at this address, whose pointer to the current fiber is at `current` in it.
///
/// # Errors
/// Nothing, or not exactly one thing, fits; or the program has changed it meanwhile.
pub fn prove(memory: &impl ReadMemory, cord: u64, current: u64) -> Result<ProvenFibers, Unproven> {
    let scheduler = scheduler_name(memory, cord).ok_or(Unproven("its scheduler has no fiber, or an older kind"))?;
    // Of the largest ring, which is the most likely to be the right one.
    let mut largest = 0;
    let mut why = Unproven("its ring of fibers is not found, or changes too fast");
    for offset in (0..CORD_HEAD as u64).map(|word| word * 8) {
        let mut nodes = ring(memory, cord.wrapping_add(offset), MOST_FIBERS);
        // The newest fibers may end meanwhile: the older half has to do then.
        while !nodes.is_empty() {
            let fibers: Vec<_> = nodes.iter().map(|node| Around::read(memory, *node)).collect();
            match of_ring(memory, &fibers, scheduler) {
                Ok((mut layout, link)) => {
                    layout.current = cord.wrapping_add(current);
                    let found = ProvenFibers { layout, alive: cord.wrapping_add(offset), link };
                    return if runs_one(memory, &found, scheduler) { Ok(found) } else { Err(why) };
                }
                Err(error) if nodes.len() > largest => (largest, why) = (nodes.len(), error),
                Err(_) => {}
            }
            let half = nodes.len() / 2;
            nodes.truncate(if half >= LEAST_OLD_FIBERS { half } else { 0 });
        }
    }
    Err(why)
}

/// The address of the scheduler's pointer to its name.
fn scheduler_name(memory: &impl ReadMemory, cord: u64) -> Option<u64> {
    let mut words = vec![0; CORD];
    read_readable(memory, cord, &mut words);
    let is_name = |text: u64| memory.read::<[u8; 6]>(text).is_ok_and(|name| name == *b"sched\0");
    let places = words.iter().zip((0..).map(|number| cord.wrapping_add(number * 8)));
    let mut places = places.filter(|(word, place)| **word == place.wrapping_add(8) && is_name(**word));
    let (_, found) = places.next()?;
    places.next().is_none().then_some(found)
}

/// The places in the fibers of a ring, with the offset of their nodes.
fn of_ring(memory: &impl ReadMemory, fibers: &[Around], scheduler: u64) -> Result<(FiberLayout, u64), Unproven> {
    let name = name_place(memory, fibers).ok_or(Unproven("the place of names is not found"))?;
    let (link, stack, size) = stack_place(fibers).ok_or(Unproven("the place of stacks is not found"))?;
    if fibers.len() < LEAST_FIBERS {
        return Err(Unproven("it has too few fibers yet to prove where they have what"));
    }
    let start = scheduler.wrapping_sub((link + name) as u64 * 8);
    let of_scheduler = |offset: usize| memory.read::<u64>(start.wrapping_add(offset as u64 * 8));
    if of_scheduler(stack) != Ok(0) || of_scheduler(size) != Ok(0) {
        return Err(Unproven("its scheduler is no fiber like others"));
    }
    let (id, is_wide) =
        id_place(memory, fibers, (link, name), start).ok_or(Unproven("the place of ids is not found"))?;
    let bytes = |words: usize| words as u32 * 8;
    let layout = FiberLayout {
        current: 0,
        id: id as u32 * 4,
        id_mask: if is_wide { u32::MAX } else { 0 },
        name: bytes(link + name),
        stack: bytes(stack),
        stack_size: bytes(size),
        reserved: 0,
    };
    Ok((layout, u64::from(bytes(link))))
}

/// The place of the pointer to the name, in words behind the node: in most fibers it points right behind itself, in the
/// others to memory that can be read. Fibers lie side by side, so farther places fit that belong to the next fiber.
fn name_place(memory: &impl ReadMemory, fibers: &[Around]) -> Option<usize> {
    let is_inline = |fiber: &Around, at: usize| {
        let own = fiber.node.wrapping_add(at as u64 * 8);
        fiber.word(at as isize) == Some(own.wrapping_add(8))
    };
    let is_text =
        |fiber: &Around, at: usize| fiber.word(at as isize).is_some_and(|name| memory.read::<u8>(name).is_ok());
    let fits = |at: &usize| {
        let inline = fibers.iter().filter(|fiber| is_inline(fiber, *at)).count();
        inline * 2 >= fibers.len() && fibers.iter().all(|fiber| is_inline(fiber, *at) || is_text(fiber, *at))
    };
    (0..AFTER).find(fits)
}

/// The number of words from the beginning of a fiber to its node; and where in the fiber its stack and the stack's size
/// are. The saved stack pointer comes first, then the block of memory with the stack in it, then the stack. What is nearest to
/// the node belongs to the same fiber.
fn stack_place(fibers: &[Around]) -> Option<(usize, usize, usize)> {
    /// The most words from the beginning of a fiber to the size of its stack.
    const MOST: usize = 8;
    let of_link = |link: usize| {
        let places = (2..MOST).flat_map(|stack| (stack + 1..MOST).map(move |size| (link, stack, size)));
        places.into_iter().find(|places| fibers.iter().all(|fiber| has_stack(fiber, *places)))
    };
    (MOST..BEFORE).find_map(of_link)
}

/// Whether a fiber has its stack and the stack's size at these places, with so many words before its node.
fn has_stack(fiber: &Around, (link, stack, size): (usize, usize, usize)) -> bool {
    let word = |at: usize| fiber.word(at as isize - link as isize);
    let (Some(sp), Some(block), Some(stack), Some(size)) = (word(0), word(1), word(stack), word(size)) else {
        return false;
    };
    [block, stack].iter().all(|address| address % PAGE == 0)
        && STACKS.contains(&size)
        && 0 < block
        && block < stack
        && stack - block < size
        && sp.checked_sub(stack).is_some_and(|used| used < size)
}

/// The place of ids, in units of four bytes from the beginning of a fiber, and whether they have eight. `start` is where the
/// scheduler's fiber begins.
fn id_place(
    memory: &impl ReadMemory,
    fibers: &[Around],
    (link, name): (usize, usize),
    start: u64,
) -> Option<(usize, bool)> {
    let ids = |at: usize| fibers.iter().map(move |fiber| fiber.half(at as isize - link as isize * 2));
    let of_scheduler = |at: usize| memory.read::<u32>(start.wrapping_add(at as u64 * 4)).ok();
    let rises = |at: &usize| {
        let mut last = Some(SCHEDULER);
        of_scheduler(*at) == last
            && ids(*at).all(|id| {
                let is_more = id > last;
                last = id;
                is_more
            })
    };
    let mut places = (0..(link + name) * 2).filter(rises);
    let found = places.next().filter(|_| places.next().is_none())?;
    // A half that cannot be read tells nothing: it must not make ids shorter than they are.
    let upper = if found % 2 == 0 { Some(of_scheduler(found + 1)?) } else { None };
    let is_wide = upper == Some(0) && ids(found + 1).all(|upper| upper == Some(0));
    Some((found, is_wide))
}

/// Whether the fiber that the cord says to run is the scheduler's, or one like the others.
fn runs_one(memory: &impl ReadMemory, found: &ProvenFibers, scheduler: u64) -> bool {
    let ProvenFibers { layout, link, .. } = found;
    let Ok(fiber) = memory.read::<u64>(layout.current) else { return false };
    if fiber == scheduler.wrapping_sub(u64::from(layout.name)) {
        return true;
    }
    let around = Around::read(memory, fiber.wrapping_add(*link));
    let words = |bytes: u64| (bytes / 8) as usize;
    has_stack(&around, (words(*link), words(layout.stack.into()), words(layout.stack_size.into())))
}
