//! Reads the root for this process, and replaces it by compare-and-swap.
//!
//! Owns the newest root known, the one replacement that may be in flight, and the rule that decides
//! the fate of a replacement (docs/PROTOCOL.md, rule 5). A [`Transition`] says what is changed.
//!
//! *Every* answer but success leaves open whether a replacement was made, "precondition failed"
//! included, since clients and proxies repeat requests. So the root is read again, and decides:
//!
//! - It carries the generation and nonce of the attempt: made.
//! - It is still the attempt's base: the attempt may yet arrive. The *identical bytes* are sent
//!   again until the root moves or the deadline passes; of two requests the first wins and the
//!   other fails its condition. After the deadline the outcome is unknown until the next change
//!   settles it.
//! - It is another root: the attempt can never be made any more, since no root returns. The
//!   transition looks in that root whether it was made before (a commit looks at its volume's
//!   entry). If not, the change is made anew on top of it.
//!
//! A future that is dropped half-way leaves its attempt behind like an unknown outcome.

use super::ancestry::{Rebuilds, require_descent, require_generation, shorten};
use super::attempt::{Attempt, Fate, Made, is_decided, is_over, unsettled};
use super::chain::{Chain, RootMark};
pub use super::change::{Applied, Transition};
use super::contention::Races;
use super::doubt::{Look, Looks};
use super::error::RootError;
use super::lists::DirectLists;
use super::lock_rule;
use super::memory::GenerationMemory;
pub use super::parts::RootParts;
use super::reading::{first_view, open_root};
use super::retry::{Pauses, RetryPolicy, bounded, is_refusal, random};
use super::start::Start;
use super::state::{ROOT_KEY, Root, SessionId};
use super::view::RootView;
use bkfs_chunker::crypto::{Class, Keyring};
use bkfs_store::entropy::Entropy;
use bkfs_store::{Operation, Store, StoreError, Version};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Mutex, watch};

/// Reads of the root before the store is blamed for showing a root that it has replaced.
const CONFIRMING_LOOKS: u32 = 3;

/// The root in this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RootHandle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    keyring: Keyring,
    entropy: Arc<dyn Entropy>,
    memory: Arc<dyn GenerationMemory>,
    policy: RetryPolicy,
    bears_refusals: AtomicBool,
    /// Newest root known. Its generation never decreases.
    known: watch::Sender<Arc<RootView>>,
    /// Last root that the store acknowledged to this process as made.
    made: parking_lot::Mutex<Made>,
    /// Roots that a repair made during this process.
    rebuilds: Rebuilds,
    /// Reads of the root, and whether a later one must show that it stands.
    looks: Looks,
    /// One replacement at a time; holds the last one while its outcome is unknown.
    turn: Mutex<Option<Attempt>>,
}

impl RootHandle {
    /// Reads the root for the first time. `min_generation` is the oldest that the user accepts.
    ///
    /// # Errors
    /// [`RootError::Rollback`], [`RootError::NotDescended`] and [`RootError::Rebuilt`] if the root
    /// does not follow what this machine remembers, or is older than the user demands; store errors
    /// as they come, also for an absent root.
    pub async fn open(parts: RootParts, min_generation: u64) -> Result<Self, RootError> {
        // Recalled before the root is read: another process may raise it meanwhile.
        let remembered = parts.memory.recall().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the last seen generation: rollbacks go unnoticed");
            None
        });
        let RootParts {
            store,
            keyring,
            entropy,
            memory,
            policy,
            accept_rollback,
        } = parts;
        let view = Arc::new(first_view(&*store, &keyring, &policy, &*entropy).await?);
        let found = view.root.mark();
        require_generation(found, min_generation)?;
        if let Some(known) = remembered.filter(|_| !accept_rollback) {
            require_descent(&store, &keyring, &view.root, known).await?;
        }
        let known = watch::Sender::new(view);
        let handle = Self(Arc::new(Inner {
            store,
            keyring,
            entropy,
            memory,
            policy,
            bears_refusals: AtomicBool::new(false),
            known,
            made: parking_lot::Mutex::default(),
            rebuilds: Rebuilds::default(),
            looks: Looks::default(),
            turn: Mutex::new(None),
        }));
        if accept_rollback && let Err(error) = handle.0.memory.accept(found).await {
            tracing::warn!(%error, "cannot record that this repository state was accepted");
        }
        handle.remember(found).await;
        Ok(handle)
    }

    /// Returns the newest root known, without a request.
    pub fn current(&self) -> Arc<RootView> {
        self.0.known.borrow().clone()
    }

    /// Returns true if only this process has changed the root lately.
    pub(super) fn is_alone(&self) -> bool {
        self.0.made.lock().is_alone(self.current().root.mark())
    }

    /// Returns a channel of every newer root that this process learns of.
    pub fn subscribe(&self) -> watch::Receiver<Arc<RootView>> {
        self.0.known.subscribe()
    }

    /// The repository's keys.
    pub fn keyring(&self) -> &Keyring {
        &self.0.keyring
    }

    /// The bucket.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// This machine's memory of the repository.
    pub fn memory(&self) -> &dyn GenerationMemory {
        &*self.0.memory
    }

    /// Source of randomness.
    pub fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.0.entropy
    }

    /// Returns the current timeouts and back-off.
    pub fn policy(&self) -> RetryPolicy {
        RetryPolicy {
            bears_refusals: self.0.bears_refusals.load(Ordering::Relaxed),
            ..self.0.policy
        }
    }

    /// From now on requests wait for a store that refuses, and one without a root, as long as for a
    /// silent one ([`RetryPolicy::bears_refusals`]).
    pub fn bear_refusals(&self) {
        self.0.bears_refusals.store(true, Ordering::Relaxed);
    }

    /// Whether a read of the root that failed like this is repeated. A root does not vanish.
    fn bears(&self, error: &StoreError) -> bool {
        let policy = self.policy();
        policy.bears(error) || (policy.bears_refusals && error.is_not_found())
    }

    /// Reads the root by a request sent after this call (step `FsyncGet` needs that); an unchanged
    /// root costs no body, unless the last look failed.
    ///
    /// # Errors
    /// [`RootError::NotDescended`], [`RootError::Rollback`], [`RootError::NotAtomic`], or its
    /// damage; store errors.
    pub async fn refresh(&self) -> Result<Arc<RootView>, RootError> {
        self.read(true).await
    }

    /// As [`Self::refresh`], but reads all of the root also if its version has not changed.
    ///
    /// # Errors
    /// Those of [`Self::refresh`].
    pub(super) async fn read_whole(&self) -> Result<Arc<RootView>, RootError> {
        self.read(false).await
    }

    /// Returns whether a read of the root has failed, and no later one was good.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.0.looks.are_in_doubt()
    }

    /// Reads the root, without its body if it has not changed and `spares` says so.
    async fn read(&self, spares: bool) -> Result<Arc<RootView>, RootError> {
        let store = &self.0.store;
        let mut pauses = self.pauses();
        loop {
            let before = self.current();
            // One that cannot be read may have the version that is known.
            let spares = spares && !self.is_in_doubt();
            let mut look = self.0.looks.begin();
            let request = async {
                match spares {
                    true => store.get_if_changed(ROOT_KEY, &before.version).await,
                    false => store.get(ROOT_KEY).await.map(Some),
                }
            };
            let read = self.bounded(&pauses, Operation::Get, request).await;
            look.answered();
            match read {
                Ok(None) => {
                    look.good();
                    return Ok(self.current());
                }
                Ok(Some(object)) => return self.shown(look, object, before.root.mark()).await,
                Err(error) if self.bears(&error) => {
                    drop(look);
                    pauses.pause(&error).await.map_err(|_| error)?
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes one change of the root: tries it on the newest root, again after every conflict, until
    /// it is made or refused. The module header covers lost answers. Dropped, it leaves an
    /// unsettled attempt.
    ///
    /// # Errors
    /// [`RootError::OutcomeUnknown`] if it may have been made; after any other error it was not.
    pub async fn update<T: Transition>(
        &self,
        transition: &mut T,
    ) -> Result<Applied<T::Output>, RootError> {
        self.change(transition, Start::Read).await
    }

    /// As [`Self::update`], but tries the change first on the newest root known, which saves a
    /// request. A root that admits no change is read again before that counts.
    ///
    /// # Errors
    /// Those of [`Self::update`].
    pub async fn update_known<T: Transition>(
        &self,
        transition: &mut T,
    ) -> Result<Applied<T::Output>, RootError> {
        self.change(transition, Start::Known).await
    }

    /// Makes a change; `start` tells which root it is first tried on.
    pub(super) async fn change<T: Transition>(
        &self,
        transition: &mut T,
        start: Start,
    ) -> Result<Applied<T::Output>, RootError> {
        let mut turn = self.0.turn.lock().await;
        self.settle_left(&mut turn).await?;
        let mut is_fresh = !matches!(start, Start::Known);
        let mut base = match start.known(self.current()) {
            Some(known) => known,
            None => self.refresh().await?,
        };
        let mut pauses = self.pauses();
        let mut races = Races::of(transition.session(), &self.0.policy, &*self.0.entropy);
        for _ in 0..self.0.policy.conflicts_max {
            races.begin();
            let (attempt, output) = match self.prepare(transition, &base).await {
                Ok(prepared) => prepared,
                Err(error) => {
                    base = match is_fresh {
                        true => self.moved_on(&base, error).await?,
                        false => self.moved(&base, error).await?,
                    };
                    is_fresh = true;
                    continue;
                }
            };
            let generation = attempt.next.root.generation;
            let fate = self.send(turn.insert(attempt), Some(&mut races)).await;
            if is_decided(&fate) {
                *turn = None;
            }
            match fate? {
                Fate::Made => return Ok(Applied { generation, output }),
                Fate::Superseded(view) => match transition.seen(&view.root).await {
                    Ok(true) => return Ok(Applied { generation, output }),
                    Ok(false) => base = view,
                    Err(error) => {
                        return Err(RootError::OutcomeUnknown {
                            reason: error.to_string(),
                        });
                    }
                },
            }
            races.pause(&mut pauses).await;
        }
        Err(RootError::Contended {
            attempts: self.0.policy.conflicts_max,
        })
    }

    /// Decides the fate of an attempt that an earlier change left; returns the root as of then.
    /// Dropped, it leaves the attempt unsettled.
    ///
    /// # Errors
    /// Store errors if it cannot be decided now.
    pub async fn settle(&self) -> Result<Arc<RootView>, RootError> {
        let mut turn = self.0.turn.lock().await;
        self.settle_left(&mut turn).await?;
        drop(turn);
        self.refresh().await
    }

    async fn settle_left(&self, turn: &mut Option<Attempt>) -> Result<(), RootError> {
        if let Some(left) = turn.as_ref() {
            // Made or superseded, it is decided, and its caller sees in the root which. If
            // undecided, the present change was never sent.
            let fate = self.send(left, None).await;
            // Refusals decide nothing here: an earlier request of it may still arrive.
            if is_over(&fate) {
                *turn = None;
            }
            fate.map_err(unsettled)?;
        }
        Ok(())
    }

    /// Seals the root that `transition` makes of `base`, under a fresh salt and nonce.
    async fn prepare<T: Transition>(
        &self,
        transition: &mut T,
        base: &RootView,
    ) -> Result<(Attempt, T::Output), RootError> {
        if !base.features.permit_writing() {
            return Err(RootError::ReadOnlyFeatures);
        }
        match transition.session() {
            Some(session) => drop(base.root.require_live(session)?),
            None => self.0.rebuilds.refuse()?,
        }
        let mut root = base.root.clone();
        let mut features = base.features;
        // A session of a program without the feature could write no more.
        let mut others = root.sessions.keys().copied().map(Some);
        if root.chain.is_none() && others.all(|other| other == transition.session()) {
            root.chain = Some(Chain::new(root.generation, None));
            features = features.with_witness();
        }
        if root.chain.is_some() && root.lock_rules.is_none() {
            // If the config cannot be read now, a later root gets the rule.
            let stated = lock_rule::stated(&*self.0.store, &self.0.keyring, &self.policy()).await;
            root.lock_rules = stated.ok().map(|rule| vec![rule]);
        }
        root.follow(self.random());
        let writer = transition.session().map(|session| self.last_list(session));
        shorten(writer.as_ref(), &mut root).await;
        let output = transition.apply(&mut root).await?;
        root.leave_room();
        let payload = root.encode()?;
        let features = root.form.stated_in(features);
        let body =
            self.0
                .keyring
                .seal_object(Class::Root, ROOT_KEY, features, self.random(), &payload);
        // The store's answer brings the version.
        let next = RootView {
            root,
            version: base.version.clone(),
            features,
            length: body.len(),
        };
        Ok((
            Attempt {
                next,
                base: base.root.mark(),
                expected: base.version.clone(),
                body,
            },
            output,
        ))
    }

    /// Sends an attempt until its fate is known, with the same bytes each time.
    ///
    /// # Errors
    /// [`RootError::Store`], [`RootError::NotAtomic`] if it was not made and never will be; else
    /// [`RootError::OutcomeUnknown`].
    async fn send(
        &self,
        attempt: &Attempt,
        mut races: Option<&mut Races>,
    ) -> Result<Fate, RootError> {
        let mut pauses = self.pauses();
        let mut refused_only = true;
        loop {
            let sent = self
                .bounded(
                    &pauses,
                    Operation::Replace,
                    self.0
                        .store
                        .replace(ROOT_KEY, vec![attempt.body.clone()], &attempt.expected),
                )
                .await;
            let error = match sent {
                Ok(version) => {
                    let made = RootView {
                        version,
                        ..attempt.next.clone()
                    };
                    self.accept(made, attempt.base).await?;
                    self.0.made.lock().note(attempt);
                    self.confirm(attempt.next.root.mark()).await?;
                    return Ok(Fate::Made);
                }
                Err(error) => error,
            };
            // Only the answer to its first request says that it has lost.
            if let Some(races) = races.take() {
                races.end(attempt, &error, &mut pauses).await;
            }
            let refused = is_refusal(error.kind());
            refused_only &= refused;
            let view = self.look(attempt, &mut pauses).await?;
            let mark = view.root.mark();
            if mark == attempt.next.root.mark() {
                return Ok(Fate::Made);
            }
            if mark != attempt.base {
                return Ok(Fate::Superseded(view));
            }
            let is_final = refused && refused_only;
            // Every answer was a refusal and the root did not move: waiting does not help.
            if is_final && !self.policy().bears_refusals {
                return Err(error.into());
            }
            if let Err(unknown) = pauses.pause(&error).await {
                return Err(if is_final { error.into() } else { unknown });
            }
        }
    }

    /// Reads again whether the acknowledged root `mark`, or a descendant of it, stands. A failed
    /// read proves nothing; only an older root is read again.
    ///
    /// # Errors
    /// [`RootError::NotAtomic`].
    async fn confirm(&self, mark: RootMark) -> Result<(), RootError> {
        let made = self.current();
        let descent = self.require_descent(&made.root, mark).await;
        if let Err(error @ RootError::NotAtomic { .. }) = descent {
            return Err(error);
        }
        let mut pauses = self.pauses();
        for _ in 0..CONFIRMING_LOOKS {
            let look = self.0.store.get_if_changed(ROOT_KEY, &made.version);
            let looked = self.bounded(&pauses, Operation::Get, look).await;
            let open = |(bytes, at): (Bytes, Version)| open_root(&self.0.keyring, &bytes, at);
            let looked = looked.map(|read| read.map(open));
            let Ok(Some(Ok(view))) = looked else {
                return Ok(());
            };
            match self.accept(view, mark).await {
                Err(error @ RootError::NotAtomic { .. }) => return Err(error),
                Err(RootError::Rollback { .. }) => pauses.sleep_half().await,
                _ => return Ok(()),
            }
        }
        Err(RootError::NotAtomic { made: mark })
    }

    /// Reads the whole root after an unanswered attempt. If that fails, the outcome is unknown; a
    /// root without the attempt's base in its history ends the attempt.
    async fn look(
        &self,
        attempt: &Attempt,
        pauses: &mut Pauses<'_>,
    ) -> Result<Arc<RootView>, RootError> {
        let unknown = |error: RootError| match error {
            error @ RootError::NotAtomic { .. } => error,
            error => RootError::OutcomeUnknown {
                reason: error.to_string(),
            },
        };
        loop {
            let mut seen = self.0.looks.begin();
            let read = self.bounded(pauses, Operation::Get, self.0.store.get(ROOT_KEY));
            let read = read.await;
            seen.answered();
            match read {
                Ok(object) => {
                    let shown = self.shown(seen, object, attempt.base).await;
                    return shown.map_err(unknown);
                }
                Err(error) if self.bears(&error) => {
                    drop(seen);
                    pauses.pause(&error).await?
                }
                Err(error) => return Err(unknown(error.into())),
            }
        }
    }

    /// Records what a look has shown; see [`Self::accept`].
    async fn shown(
        &self,
        look: Look<'_>,
        (bytes, version): (Bytes, Version),
        floor: RootMark,
    ) -> Result<Arc<RootView>, RootError> {
        let view = open_root(&self.0.keyring, &bytes, version)?;
        let known = self.accept(view, floor).await?;
        look.good();
        Ok(known)
    }

    /// Records a root whose read was sent when `floor` was known; returns the newest known.
    async fn accept(&self, view: RootView, floor: RootMark) -> Result<Arc<RootView>, RootError> {
        let found = view.root.mark();
        self.require_descent(&view.root, floor).await?;
        let before = self.current().root.mark();
        if before.generation < found.generation {
            self.require_descent(&view.root, before).await?;
        }
        let mut newer = false;
        self.0.known.send_if_modified(|known| {
            newer = known.root.generation < found.generation;
            if newer {
                *known = Arc::new(view);
            }
            newer
        });
        let known = self.current();
        if known.root.generation == found.generation && known.root.nonce != found.nonce {
            let known = known.root.mark();
            return Err(self.blame(RootError::Rollback { known, found }, known));
        }
        if newer && !self.0.rebuilds.is_any() {
            self.remember(found).await;
        }
        Ok(known)
    }

    /// Checks that `root` is `known`, descends from it, or was rebuilt since: see [`Rebuilds`].
    async fn require_descent(&self, root: &Root, known: RootMark) -> Result<(), RootError> {
        let judged = require_descent(&self.0.store, &self.0.keyring, root, known).await;
        let borne = self.0.rebuilds.bear(judged);
        borne.map_err(|error| self.blame(error, known))
    }

    /// Blames the store if a root does not descend from a `known` one that it has acknowledged to
    /// this process.
    fn blame(&self, error: RootError, known: RootMark) -> RootError {
        let is_made = self.0.made.lock().last == Some(known);
        match error {
            RootError::NotDescended { .. } if is_made => RootError::NotAtomic { made: known },
            RootError::Rollback { known, found }
                if is_made && known.generation == found.generation =>
            {
                RootError::NotAtomic { made: known }
            }
            error => error,
        }
    }

    async fn remember(&self, mark: RootMark) {
        if let Err(error) = self.0.memory.remember(mark).await {
            tracing::warn!(%error, "cannot save the last seen generation: rollbacks go unnoticed");
        }
    }

    /// Returns the writer of one list that is independent of everything else that `session` writes.
    fn last_list(&self, session: SessionId) -> DirectLists {
        let (store, keyring) = (self.0.store.clone(), self.0.keyring.clone());
        let (entropy, policy) = (self.0.entropy.clone(), self.policy());
        DirectLists::of(session, store, keyring, entropy, policy).last()
    }

    async fn bounded<T>(
        &self,
        pauses: &Pauses<'_>,
        operation: Operation,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let policy = pauses.policy_for(self.current().length);
        bounded(&policy, operation, ROOT_KEY, request).await
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        random(&*self.0.entropy)
    }

    fn pauses(&self) -> Pauses<'_> {
        Pauses::new(&self.policy(), &*self.0.entropy)
    }
}
