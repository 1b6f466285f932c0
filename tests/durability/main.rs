//! What fsync and close promise: what was acknowledged outlives the machine, at the price that is
//! stated, and no other holder's volume is written.
//!
//! Each test makes machines without a kernel over one bucket. A crash drops all but the bucket.

mod allocated;
mod clones;
mod closing;
mod cold;
mod collecting;
mod copying;
mod copying_recovered;
mod crashes;
mod ending;
mod far;
mod fencing;
mod forgetting;
mod handles;
mod history;
mod host;
mod images;
mod layers;
mod locks;
mod marking;
mod merging;
mod merging_by_gc;
mod merging_faults;
mod merging_others;
mod missing;
mod outages;
mod outcome;
mod page;
mod paused;
mod price;
mod private;
mod putting;
mod putting_changes;
mod quarantined;
mod reading;
mod recording;
mod recovery_bases;
mod removed;
mod replacing;
mod replaying;
mod restoring;
mod rotten;
mod scattered;
mod scratch;
mod stalls;
mod surveyed;
mod swap;
mod sweeping;
mod traces;
mod unread;
mod windows;
