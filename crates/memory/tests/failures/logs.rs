//! Logs as trainings leave them: thousands of lines of progress, warnings and noise, an end somewhere, and what launchers and other ranks
//! print after it.

use std::fmt::Write as _;

/// A small generator of numbers (splitmix64): the same seed gives the same log everywhere.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// How a training prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A logger with time and level.
    Logger,
    /// Bars that are drawn over with carriage returns, in colour.
    Bars,
    /// Several ranks, each line with who prints it.
    Ranks,
    /// Bare dictionaries, as transformers' Trainer prints them.
    Dicts,
    /// A program that counts files and never speaks of steps.
    Files,
}

pub const STYLES: [Style; 5] = [
    Style::Logger,
    Style::Bars,
    Style::Ranks,
    Style::Dicts,
    Style::Files,
];

pub struct Log {
    pub style: Style,
    pub bytes: Vec<u8>,
    rng: Rng,
    step: u64,
}

/// Words that have to do with memory and mean nothing.
pub const HARMLESS: &[&str] = &[
    "2024-03-01 10:00:02.123456: W tensorflow/core/common_runtime/bfc_allocator.cc:290] Allocator (GPU_0_bfc) ran out of memory trying to allocate 544.02MiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.",
    "node-3:812:901 [2] include/shm.h:28 NCCL WARN Call to shm_open failed : No such file or directory",
    "node-3:812:901 [2] NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-8Tq0dK (size 9637888), error: No such file or directory (2)",
    "process_oom_score{pid=\"812\"} 667",
    "metrics: oom_score=667 oom_score_adj=984 rss=12.5GiB",
    "gpu memory: 31.2GiB allocated, 38.9GiB reserved, cuda_oom_count: 0",
    "memory.events: low 0 high 0 max 12 oom 0 oom_kill 0",
    "INFO Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid CUDA out of memory errors",
    "Tip: if you run out of memory, lower --batch-size or use gradient checkpointing",
    "tcmalloc: large alloc 4294967296 bytes == 0x55d0c1a3e000 @ 0x7f1a2b3c4d5e 0x55d0b9f1a2c3",
    "WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 67108864 bytes available. This will harm performance!",
    "grpc_status: RESOURCE_EXHAUSTED, Received message larger than max (4194305 vs. 4194304), will be sent in parts",
    "| epoch 003 | loss 4.127 | ppl 17.5 | oom 0 | wall 3810",
    "UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max number of worker in current system is 8, which might make DataLoader running slow or even freeze",
    "[W CUDAGuardImpl.h:46] Warning: using CUDA memory pool of 40 GiB (function initialize)",
    "Memory usage: 78% of 64GiB, swap: 0B",
    "callbacks: [EarlyStopping, OOMHandler(max_retries=3), LRMonitor]",
    "      except MemoryError:",
    "W tensorflow/core/framework/cpu_allocator_impl.cc:82] Allocation of 1207959552 exceeds 10% of free system memory.",
    "previous run ended with exit code 137, resuming from /ckpt/step-1200",
    "config: {skip_oom_batches: true, out_of_memory_retries: 3, max_oom_events: 10}",
    "Tip: 'No space left on device' errors can be avoided by setting TMPDIR to a larger disk",
    "WARNING: OOM caught, skipping this batch and emptying the CUDA cache",
    "0 out of memory errors so far, 41.2GiB peak",
    "INFO: torch.cuda.OutOfMemoryError handler installed",
    "E0301 10:00:02.100 backend: 3 shards, 12 killed and restarted tasks, 0 lost",
    "Checking for out of memory conditions... none found",
    "inotify_add_watch(/data) failed: No space left on device (raise fs.inotify.max_user_watches); files are polled instead",
];

const NOISE: &[&str] = &[
    "node-3:812:812 [0] NCCL INFO Bootstrap : Using eth0:10.0.3.17<0>",
    "node-3:812:911 [0] NCCL INFO Channel 07/24 : 0[7000] -> 1[f000] via P2P/IPC/read",
    "node-3:812:911 [0] NCCL INFO Connected all trees",
    "/usr/lib/python3.10/site-packages/torch/optim/lr_scheduler.py:143: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`",
    "  warnings.warn(\"Detected call of `lr_scheduler.step()` before `optimizer.step()`\")",
    "Some weights of BertForSequenceClassification were not initialized from the model checkpoint at bert-base-uncased",
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
    "[2024-03-01 10:00:00,000] [INFO] [config.py:996:print]   zero_config .................. {'stage': 2, 'reduce_bucket_size': 500000000}",
    "wandb: Synced 5 W&B file(s), 0 media file(s), 0 artifact file(s) and 1 other file(s)",
    "Failed to import flash_attn, the slow path is taken",
    "retrying GET https://data.example.org/shard-0041.tar: 503 Service Unavailable (attempt 2/5)",
    "Saving model checkpoint to /ckpt/checkpoint-500",
    "",
];

impl Log {
    pub fn new(style: Style, seed: u64) -> Self {
        Self {
            style,
            bytes: Vec::new(),
            rng: Rng::new(seed),
            step: 0,
        }
    }

    pub fn line(&mut self, text: &str) {
        self.bytes.extend(text.as_bytes());
        self.bytes.push(b'\n');
    }

    /// A line as the style prints what a library says: behind a rank where lines have one.
    fn said(&mut self, rank: u64, text: &str) {
        let text = match self.style {
            Style::Ranks => format!("[rank{rank}]: {text}"),
            _ => text.to_owned(),
        };
        self.line(&text);
    }

    /// Trains for so many lines, with noise in between.
    pub fn trains(&mut self, lines: usize) {
        for _ in 0..lines {
            if self.rng.one_in(7) {
                let noise = *self.rng.pick(NOISE);
                self.line(noise);
            } else if self.rng.one_in(25) {
                let harmless = *self.rng.pick(HARMLESS);
                self.line(harmless);
            } else if self.rng.one_in(400) {
                let garbage: Vec<u8> = (0..300)
                    .map(|_| self.rng.next() as u8)
                    .filter(|byte| *byte != b'\n')
                    .collect();
                self.bytes.extend(garbage);
                self.bytes.push(b'\n');
            } else {
                self.progresses();
            }
        }
    }

    fn progresses(&mut self) {
        self.step += 1;
        let step = self.step;
        let loss = 2.0 + 100.0 / (step as f64 + 40.0) + self.rng.below(1000) as f64 / 9000.0;
        let second = step % 60;
        let minute = step / 60 % 60;
        let mut text = String::new();
        match self.style {
            Style::Logger => write!(text, "2024-03-01 10:{minute:02}:{second:02},104 INFO train: step {step}/90000 loss {loss:.4} lr 3.0e-4 grad_norm 1.21 mem 31.2GiB"),
            Style::Bars => write!(text, "\x1b[32mEpoch 1:\x1b[0m  {}%|█████▎    | {step}/90000 [{minute:02}:{second:02}<2:10:11, 12.31it/s, loss={loss:.3}]\r", step * 100 / 90_000),
            Style::Ranks => write!(text, "[rank{}]: step {step} | loss {loss:.4} | 4312 tokens/s", step % 4),
            Style::Dicts => write!(text, "{{'loss': {loss:.4}, 'grad_norm': 0.71, 'learning_rate': 4.9e-05, 'epoch': {:.2}}}", step as f64 / 1000.0),
            Style::Files => write!(text, "2024-03-01T10:{minute:02}:{second:02}Z reader: done with part-{step:05}.parquet, {} rows", 1000 + self.rng.below(9000)),
        }
        .expect("a String takes every write");
        if self.style == Style::Bars {
            self.bytes.extend(text.as_bytes());
        } else {
            self.line(&text);
        }
    }

    /// The program raises what `text` says, from deep inside.
    pub fn raises(&mut self, text: &str) {
        let rank = self.rng.below(4);
        if self.style == Style::Bars {
            self.line("");
        }
        self.said(rank, "Traceback (most recent call last):");
        for (file, line, code) in [
            ("/work/train.py", 412, "main(args)"),
            (
                "/work/train.py",
                388,
                "loss = train_step(model, batch, step=120)",
            ),
            (
                "/usr/lib/python3.10/site-packages/torch/nn/modules/module.py",
                1501,
                "return forward_call(*args, **kwargs)",
            ),
            ("/work/model.py", 77, "x = self.mlp(self.norm(x)) + x"),
        ] {
            self.said(
                rank,
                &format!("  File \"{file}\", line {line}, in step_{line}"),
            );
            self.said(rank, &format!("    {code}"));
        }
        self.tells(rank, text);
    }

    /// What a process prints, line by line.
    pub fn prints(&mut self, text: &str) {
        let rank = self.rng.below(4);
        if self.style == Style::Bars {
            self.line("");
        }
        self.tells(rank, text);
    }

    fn tells(&mut self, rank: u64, text: &str) {
        for line in text.lines() {
            self.said(rank, line);
        }
    }

    /// The others go on for a moment, lose their connection, and the launcher sums up.
    pub fn falls_apart(&mut self, exit_code: i32) {
        for rank in 0..4 {
            if self.rng.one_in(2) && self.style == Style::Ranks {
                self.step += 1;
                let step = self.step;
                self.line(&format!(
                    "[rank{rank}]: step {step} | loss 2.0313 | 4312 tokens/s"
                ));
            }
        }
        for rank in 0..24 {
            self.said(rank, &format!("[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE) ran for 1800042 milliseconds before timing out.", 4000 + rank));
            self.said(rank, "Traceback (most recent call last):");
            self.said(rank, "  File \"/usr/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py\", line 1435, in wrapper");
            self.said(rank, "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1. Original reason for failure was: watchdog timeout");
        }
        let (local, pid) = (self.rng.below(4), 8000 + self.rng.below(900));
        self.line(&format!("WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {} closing signal SIGTERM", pid + 1));
        self.line(&format!("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: {exit_code}) local_rank: {local} (pid: {pid}) of binary: /usr/bin/python3"));
        for text in [
            "Traceback (most recent call last):",
            "  File \"/usr/local/bin/torchrun\", line 8, in <module>",
            "    sys.exit(main())",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "============================================================",
            "train.py FAILED",
            "------------------------------------------------------------",
            "Failures:",
            "[1]:",
            "  time      : 2024-03-01_10:31:12",
            "  rank      : 3 (local_rank: 3)",
            "  exitcode  : -9 (pid: 8159)",
            "  traceback : Signal 9 (SIGKILL) received by PID 8159",
            "------------------------------------------------------------",
            "Root Cause (first observed failure):",
            "[0]:",
            "  time      : 2024-03-01_10:31:10",
        ] {
            self.line(text);
        }
        self.line(&format!("  rank      : {local} (local_rank: {local})"));
        self.line(&format!("  exitcode  : {exit_code} (pid: {pid})"));
        self.line("  error_file: <N/A>");
        match exit_code {
            -9 => self.line(&format!("  traceback : Signal 9 (SIGKILL) received by PID {pid}")),
            _ => self.line("  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"),
        }
        self.line("============================================================");
    }
}
