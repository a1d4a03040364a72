//! The protocol, by hand and by chance.

use proptest::prelude::*;

use super::*;
use crate::value::Ask;

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\n\
    a,16000,1000,2,T4\n\
    b,16000,1000,2,A10\n";

const NODE_COLUMNS: &str = "sn,cpu_milli,memory_mib,gpu,model";
const POD_COLUMNS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec";

fn csv(columns: &str, rows: impl IntoIterator<Item = String>) -> String {
    let mut lines = vec![columns.to_owned()];
    lines.extend(rows);
    lines.join("\n")
}

/// Nodes as above; pods of `cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec` in the order given.
fn trace(pods: &[&str]) -> Trace {
    let text = csv(POD_COLUMNS, pods.iter().map(|pod| format!("pod,{pod}")));
    let order: Vec<String> = (0..pods.len()).map(|row| row.to_string()).collect();
    Trace::parse(NODES, &text, &order.join(" ")).expect("a trace")
}

fn nodes(trace: &Trace, policy: Policy) -> Vec<Option<usize>> {
    Replay::new(trace, policy, 1)
        .map(|arrival| arrival.node)
        .collect()
}

#[test]
fn every_filter_is_kept() {
    let cases = [
        ("CPU", ["16000,1,0,0,", "16000,1,0,0,", "1,1,0,0,"]),
        ("memory", ["1,1000,0,0,", "1,1000,0,0,", "1,1,0,0,"]),
        ("whole GPUs", ["1,1,2,1000,", "1,1,2,1000,", "1,1,1,1,"]),
        (
            "a GPU in part",
            ["1,1,2,1000,", "1,1,1,600,", "1,1,2,1000,"],
        ),
        (
            "model",
            ["1,1,2,1000,T4", "1,1,2,1000,A10", "1,1,1,1000,T4|A10"],
        ),
        (
            "model nobody has",
            ["1,1,1,1000,", "1,1,1,1000,", "1,1,1,500,H100"],
        ),
    ];
    for (what, pods) in cases {
        let trace = trace(&pods);
        for policy in Policy::ALL {
            let nodes = nodes(&trace, policy);
            let placed: Vec<bool> = nodes.iter().map(Option::is_some).collect();
            assert_eq!(placed, [true, true, false], "{what}, {policy}");
        }
    }
    let spec = trace(&["1,1,1,1000,A10", "1,1,1,1000,T4"]);
    for policy in Policy::ALL {
        assert_eq!(nodes(&spec, policy), [Some(1), Some(0)], "{policy}");
    }
}

#[test]
fn a_mark_is_the_mean_of_its_samples() {
    // Four GPUs: 25 %, 50 %, 50 % (no GPU), 75 %, 100 %, 110 %, 110 % (fails), 130 %.
    let trace = trace(&[
        "1,1,1,1000,",
        "1,1,1,1000,",
        "1,1,0,0,",
        "1,1,1,1000,",
        "99999,1,1,1000,",
        "1,1,1,400,",
        "99999,1,0,0,",
        "1,1,1,800,",
    ]);
    let mut replay = Replay::new(&trace, Policy::BestFit, 1);
    assert_eq!(replay.len(), 8);
    assert_eq!(replay.by_ref().count(), 8);
    let report = replay.report();
    insta::assert_snapshot!(serde_json::to_string(&report).expect("JSON"), @r#"{"policy":"bestfit","unallocated":{"50":50.0,"80":null,"95":null,"100":25.0,"110":15.0,"130":15.0},"failed_pods":3,"decision_us":null}"#);
}

#[test]
fn a_shared_gpu_stays_shared() {
    // Fractions together, and a whole GPU never beside them.
    let trace = trace(&[
        "1,1,1,400,",
        "1,1,1,600,",
        "1,1,2,1000,",
        "1,1,1,1000,",
        "1,1,1,10,",
    ]);
    let placed: Vec<bool> = nodes(&trace, Policy::BestFit)
        .iter()
        .map(Option::is_some)
        .collect();
    assert_eq!(placed, [true, true, true, true, false]);
}

#[test]
fn bad_files_are_refused_with_their_line() {
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,500\n";
    let cases = [
        ("", pods, "0"),
        ("sn,cpu_milli,memory_mib,gpu\n", pods, "0"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,1,1,1\n", pods, "0"),
        (
            "sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,T4\nb,many,1,1,T4\n",
            pods,
            "0",
        ),
        (
            "sn,cpu_milli,memory_mib,gpu,model\na,1,1,-1,T4\n",
            pods,
            "0",
        ),
        (
            "sn,cpu_milli,memory_mib,gpu,model\na,1,1,99999999,T4\n",
            pods,
            "0",
        ),
        ("sn,cpu_milli,memory_mib,gpu,model\na,1,1,0,\n", pods, "0"),
        (NODES, "name,cpu_milli\n", "0"),
        (
            NODES,
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1001\n",
            "0",
        ),
        (
            NODES,
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,2,500\n",
            "0",
        ),
        (
            NODES,
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n\np,1,1,1,0\n",
            "0",
        ),
        (NODES, pods, "0 1"),
        (NODES, pods, "0\n0 x"),
        (NODES, pods, "0 -1"),
    ];
    let said: Vec<String> = cases
        .iter()
        .map(
            |(nodes, pods, order)| match Trace::parse(nodes, pods, order) {
                Ok(_) => "read".to_owned(),
                Err(error) => error.to_string(),
            },
        )
        .collect();
    insta::assert_snapshot!(said.join("\n"), @r#"
    nodes, line 1: the file is empty
    nodes, line 1: there is no column model
    nodes, line 2: 4 columns, and 5 in the first line
    nodes, line 3: cpu_milli is "many", which is no whole number
    nodes, line 2: gpu is "-1", which is no whole number
    nodes, line 2: gpu is 99999999, above 1024
    nodes, line 1: no node has a GPU
    pods, line 1: there is no column memory_mib
    pods, line 2: gpu_milli is 1001, above 1000
    pods, line 2: 2 GPUs of 500 thousandths: only one GPU can be asked for in part
    pods, line 3: gpu_milli is 0, but num_gpu is not
    order, line 1: 1 is no row of the pod file, which has 1
    order, line 2: "x" is no row number
    order, line 1: "-1" is no row number
    "#);

    let many = csv(
        NODE_COLUMNS,
        (0..=64).map(|model| format!("n,1,1,1,M{model}")),
    );
    let error = Trace::parse(&many, pods, "0").expect_err("too many models");
    assert_eq!(error.line, 66);
}

#[test]
fn columns_are_found_by_name() {
    let nodes = "model,gpu,sn,cpu_milli,memory_mib,zone\r\nT4,1,a,10,20,x\r\n";
    let pods =
        "gpu_spec,gpu_milli,num_gpu,qos,cpu_milli,memory_mib,name\r\nT4 | A10,500,1,LS,1,2,p\r\n";
    let trace = Trace::parse(nodes, pods, "0\n0\n\n").expect("a trace");
    assert_eq!((trace.arrivals(), trace.gpu_milli()), (2, 1000));
    assert_eq!((trace.nodes[0].cpu, trace.nodes[0].memory), (10, 20));
    assert_eq!((trace.kinds[0].cpu, trace.kinds[0].memory), (1, 2));
    assert_eq!(trace.kinds[0].models.len(), 2);
}

#[test]
fn policies_have_names() {
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
        assert_eq!(serde_json::to_value(policy).expect("JSON"), policy.name());
    }
    let error = "first".parse::<Policy>().expect_err("no such policy");
    insta::assert_snapshot!(error, @r#"there is no policy "first"; there are stokehold, fgd, bestfit, packing and random"#);
}

#[test]
fn the_floor_is_what_cutting_leaves() {
    let nodes = "sn,cpu_milli,memory_mib,gpu,model\nn,1000000,1000000,200,T4\n";
    let floor_of = |sizes: &[u16]| {
        let pods = csv(
            POD_COLUMNS,
            sizes.iter().map(|size| format!("p,1,1,1,{size},")),
        );
        // By turns until 130 % have arrived.
        let mut order = Vec::new();
        let mut arrived = 0;
        while arrived < 260_000 {
            let row = order.len() % sizes.len();
            arrived += u32::from(sizes[row]);
            order.push(row.to_string());
        }
        let trace = Trace::parse(nodes, &pods, &order.join(" ")).expect("a trace");
        floor(&trace)[&100]
    };
    let cases: [(&[u16], f64); 6] = [
        (&[1000], 0.0),
        (&[500], 0.0),
        (&[600], 40.0),
        (&[700, 300], 0.0),
        (&[810], 19.0),
        // One of each on every GPU.
        (&[810, 160], 3.0),
    ];
    for (sizes, expected) in cases {
        let idle = floor_of(sizes);
        assert!(
            idle.is_some_and(|idle| (idle - expected).abs() < 0.5),
            "{sizes:?}: {idle:?}"
        );
    }
}

#[test]
fn decision_times_are_percentiles() {
    let took = (1..=1000)
        .rev()
        .map(std::time::Duration::from_micros)
        .collect();
    let time = DecisionTime::of(took).expect("there are some");
    assert!(
        (time.p50 - 500.0).abs() < 2.0 && (time.p99 - 990.0).abs() < 2.0,
        "{time:?}"
    );
    assert_eq!(DecisionTime::of(Vec::new()), None);
}

fn any_trace() -> impl Strategy<Value = Trace> {
    let node = (0_u64..40, 0_u64..100, 0_u32..9, 0_usize..3);
    let pod = (
        0_u64..12,
        0_u64..20,
        prop_oneof![
            Just((0, 0)),
            (1_u16..1000).prop_map(|milli| (1, milli)),
            (1_u32..5).prop_map(|gpus| (gpus, 1000))
        ],
        prop_oneof![3 => Just(""), 1 => Just("M0"), 1 => Just("M1|M2"), 1 => Just("M9")],
    );
    (
        prop::collection::vec(node, 1..8),
        prop::collection::vec(pod, 1..12),
        prop::collection::vec(any::<prop::sample::Index>(), 0..150),
    )
        .prop_map(|(nodes, pods, order)| {
            // One GPU at least, or it is no trace.
            let first = std::iter::once("first,4000,10,1,M0".to_owned());
            let more = nodes.into_iter().map(|(cpu, memory, gpus, model)| {
                format!("n,{},{memory},{gpus},M{model}", cpu * 1000)
            });
            let nodes = csv(NODE_COLUMNS, first.chain(more));
            let rows = pods.iter().map(|(cpu, memory, (gpus, milli), spec)| {
                format!("p,{},{memory},{gpus},{milli},{spec}", cpu * 1000)
            });
            let pod_text = csv(POD_COLUMNS, rows);
            let order: Vec<String> = order
                .iter()
                .map(|at| at.index(pods.len()).to_string())
                .collect();
            Trace::parse(&nodes, &pod_text, &order.join(" ")).expect("a trace")
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// No node has more on it than it has, a pod fails only where it fits nowhere, and the same seed gives the same places.
    #[test]
    fn policies_place_what_fits_and_nothing_else(trace in any_trace(), policy in prop::sample::select(Policy::ALL.to_vec()), seed in any::<u64>()) {
        let mut replay = Replay::new(&trace, policy, seed);
        let mut again = Replay::new(&trace, policy, seed);
        // Kept apart from the rooms: what is used of each node, and of its GPUs in all.
        let mut used = vec![(0, 0, 0); trace.nodes.len()];
        loop {
            let fits: Vec<bool> = match trace.order.get(replay.at) {
                Some(pod) => {
                    let ask: Ask = trace.kinds[trace.pods[*pod as usize] as usize];
                    replay.rooms().iter().map(|room| room.fits(&ask)).collect()
                }
                None => Vec::new(),
            };
            let arrival = replay.next();
            prop_assert_eq!(arrival, again.next());
            let Some(arrival) = arrival else { break };
            let ask = trace.kinds[trace.pods[arrival.pod] as usize];
            match arrival.node {
                Some(node) => {
                    prop_assert!(fits[node]);
                    let (cpu, memory, milli) = &mut used[node];
                    *cpu += ask.cpu;
                    *memory += ask.memory;
                    *milli += ask.gpu_milli();
                    let whole = &trace.nodes[node];
                    prop_assert!(*cpu <= whole.cpu && *memory <= whole.memory && *milli <= whole.idle_milli());
                    prop_assert!(ask.gpus == 0 || ask.models.has(whole.model));
                }
                None => prop_assert!(fits.iter().all(|fits| !fits)),
            }
        }
        let allocated: u64 = used.iter().map(|(_, _, milli)| milli).sum();
        prop_assert_eq!(allocated, replay.allocated);
        prop_assert_eq!(replay.report(), again.report());
    }

    /// Any text is read or refused.
    #[test]
    fn any_text_is_an_answer(nodes in "[a-z0-9,|\n]{0,60}", pods in "[a-z0-9,|\n]{0,60}", order in "[0-9 \nx-]{0,12}") {
        let _ = Trace::parse(&nodes, &pods, &order);
        let nodes = csv(NODE_COLUMNS, [nodes]);
        let pods = csv(POD_COLUMNS, [pods]);
        let _ = Trace::parse(&nodes, &pods, &order);
    }

    /// The floor is a percentage, never rises as more arrives, and is what has not arrived while all fits.
    #[test]
    fn floors_fall(trace in any_trace()) {
        let floors: Vec<f64> = floor(&trace).into_values().flatten().collect();
        for pair in floors.windows(2) {
            prop_assert!(pair[1] <= pair[0] + 1e-6, "{:?}", floors);
        }
        prop_assert!(floors.iter().all(|floor| (-1e-6..=100.0).contains(floor)), "{:?}", floors);
    }
}
