//! The stages one by one, in processor seconds per GB of content, and their sum compared with the
//! whole.

use std::hint::black_box;

use bkfs_chunker::chunking::{Parameters, Profile, is_zero};
use bkfs_chunker::codec::{Balance, Decoder, Effort, Encoder};
use bkfs_chunker::crypto::{Class, Features, Keyring, NONCE_LEN, RepositoryId, Secrets};
use bkfs_chunker::id::Kind;

use crate::Outcome;
use crate::context::Context;
use crate::data::{self, Numbers, Texture};
use crate::disk::{remove, text};
use crate::measure::{self, median, shell, thread_s, verified};
use crate::verify::same_bytes;

const SUITE: &str = "micro";

/// Bytes over which a stage runs: more than the caches of most processors.
const LENGTH: usize = 64 << 20;

const PAGE: usize = 16 << 10;
const FRAME: usize = 128 << 10;

/// A stage, and its processor seconds per GB.
type Stage = (&'static str, f64);

/// Measures the stages, then the whole.
pub(super) fn run(context: &mut Context) -> Outcome<()> {
    for (name, texture) in [("noise", Texture::Noise), ("pages", Texture::Pages)] {
        let stages = stages(texture, context.repeat);
        let sum: f64 = stages
            .iter()
            .filter(|(stage, _)| is_on_the_way(stage))
            .map(|(_, seconds)| seconds)
            .sum();
        for (stage, seconds) in stages {
            let figure = format!("micro, {name}: {stage}, processor s/GB");
            context.report.figures.insert(figure, seconds);
        }
        let whole = whole(context, name, texture)?;
        let figures = &mut context.report.figures;
        figures.insert(
            format!("micro, {name}: sum of the stages of a first write of pages, processor s/GB"),
            sum,
        );
        figures.insert(
            format!("micro, {name}: the daemon over a first write of pages, processor s/GB"),
            whole,
        );
    }
    Ok(())
}

/// Returns true if the first write of a page file runs this stage.
fn is_on_the_way(stage: &str) -> bool {
    ["copy", "zeros", "id of pages", "compress", "seal"].contains(&stage)
}

fn stages(texture: Texture, repeat: usize) -> Vec<Stage> {
    let mut bytes = Vec::new();
    data::fill(texture, LENGTH, &mut Numbers(41), &mut bytes);
    let secrets = Secrets::new([1; 32], [2; 32], [3; 32]);
    let keyring = Keyring::sealed(RepositoryId([7; 16]), secrets);
    let mut stages = of_content(&bytes, &keyring, repeat);
    stages.extend(of_frames(&bytes, &keyring, repeat));
    stages
}

/// Returns the stages that run before content is known to be new.
fn of_content(bytes: &[u8], keyring: &Keyring, repeat: usize) -> Vec<Stage> {
    let cutter = keyring.cutter(&Parameters::default());
    let mut room = Vec::with_capacity(LENGTH);
    let mut cuts = Vec::new();
    let mut copy = || {
        room.clear();
        room.extend_from_slice(black_box(bytes));
    };
    let mut zeros = || {
        black_box(bytes.chunks(PAGE).filter(|page| is_zero(page)).count());
    };
    let mut name = || {
        for page in bytes.chunks(PAGE) {
            black_box(keyring.id(Kind::Chunk, page));
        }
    };
    let mut cut = || {
        cuts.clear();
        cutter.cut(Profile::Content, bytes, 0, true, &mut cuts);
    };
    vec![
        ("copy", seconds_for_a_gb(repeat, &mut copy)),
        ("zeros", seconds_for_a_gb(repeat, &mut zeros)),
        ("id of pages", seconds_for_a_gb(repeat, &mut name)),
        ("cut by content", seconds_for_a_gb(repeat, &mut cut)),
    ]
}

/// Returns the stages for new content, and those for reading it back.
fn of_frames(bytes: &[u8], keyring: &Keyring, repeat: usize) -> Vec<Stage> {
    let sealer = keyring.object_sealer(Class::DataPack, "data/00/name", Features::NONE, [5; 32]);
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let mut out = Vec::with_capacity(2 * FRAME);
    let coded: Vec<Vec<u8>> = bytes
        .chunks(FRAME)
        .map(|frame| {
            let mut coded = vec![0; NONCE_LEN];
            encoder.encode(frame, Effort::Auto(Balance::Even), &mut coded);
            coded
        })
        .collect();
    let mut compress = || {
        for frame in bytes.chunks(FRAME) {
            out.clear();
            encoder.encode(black_box(frame), Effort::Auto(Balance::Even), &mut out);
        }
    };
    let compressing = seconds_for_a_gb(repeat, &mut compress);
    let mut seal = || {
        for frame in &coded {
            out.clear();
            out.extend_from_slice(frame);
            sealer.seal_in_place(1, &mut out, 0);
        }
    };
    let sealing = seconds_for_a_gb(repeat, &mut seal);
    let mut decompress = || {
        for frame in &coded {
            // The frame was just encoded, so it decodes.
            black_box(decoder.decode(&frame[NONCE_LEN..], FRAME as u32).is_ok());
        }
    };
    let decompressing = seconds_for_a_gb(repeat, &mut decompress);
    vec![
        ("compress", compressing),
        ("seal", sealing),
        ("decompress", decompressing),
    ]
}

fn seconds_for_a_gb(repeat: usize, work: &mut dyn FnMut()) -> f64 {
    let mut once = || {
        let began = thread_s();
        work();
        (thread_s() - began) * 1e9 / LENGTH as f64
    };
    once();
    median((0..repeat.max(3)).map(|_| once()).collect()).unwrap_or_default()
}

/// Returns the processor seconds of the daemon per GB written as pages, up to a snapshot.
fn whole(context: &mut Context, name: &str, texture: Texture) -> Outcome<f64> {
    let length = context.size.choose(32 << 20, 512 << 20, 2 << 30);
    let source = context.work.join("pages.ibd");
    data::stream(&source, texture, length, 42)?;
    let mut seconds = Vec::new();
    for _ in 0..context.repeat {
        let bucket = context.fresh("bucket")?;
        let url = text(&bucket).to_owned();
        context.program.init(&url)?;
        let mounted = context.program.mount(&url, &context.fresh("mount")?)?;
        let target = mounted.path().join("pages.ibd");
        let run = mounted.measure(|| {
            shell(&format!(
                "dd if={} of={} bs=1M",
                text(&source),
                text(&target)
            ))?;
            mounted.snapshot("one")
        })?;
        mounted.unmount()?;
        let target = context.work.join("restored");
        context.program.restore(&url, "one", &target)?;
        same_bytes(&source, &target.join("pages.ibd"))?;
        remove(&target)?;
        measure::drop_caches()?;
        remove(&bucket)?;
        seconds.extend(run.cpu_s.map(|cpu| cpu * 1e9 / length as f64));
        context.note(SUITE, &format!("{name} as pages"), "bkfs", verified(run));
    }
    remove(&source)?;
    median(seconds).ok_or_else(|| "no processor time was measured".into())
}
