//! The plans for the allocators of real builds.
