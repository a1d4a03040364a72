use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

const HEAD: &str = "task,start_s,duration_s,peak_bytes,input_bytes,requested_bytes\n";

fn parse(text: &str) -> Result<Workflow, TableError> {
    Workflow::parse(text)
}

/// Runs of an hour with these peaks in GiB.
fn of_peaks(peaks: &[f64]) -> Workflow {
    let mut text = HEAD.to_owned();
    for (index, peak) in peaks.iter().enumerate() {
        let _ = writeln!(
            text,
            "t,{index},3600,{},,{}",
            (peak * GIB) as u64,
            8_u64 << 30
        );
    }
    parse(&text).expect("a table")
}

fn said(workflow: Workflow) -> String {
    let report = backtest(&[workflow], FAILURE_COST_GIB_H);
    let lines = report.policies.iter().map(|score| {
        let Score { policy, waste_gib_h, failed_attempts, tasks_failed, tasks } = score;
        format!("{policy}: {waste_gib_h:.1} GiBh, {failed_attempts} failed, {tasks_failed} of {tasks} tasks\n")
    });
    lines.collect()
}

#[test]
fn each_policy_follows_its_rule() {
    let steady = vec![1.0; 40];
    insta::assert_snapshot!(said(of_peaks(&steady)), @"
    user: 196.0 GiBh, 0 failed, 0 of 1 tasks
    vpa: 4.2 GiBh, 0 failed, 0 of 1 tasks
    krr: 4.2 GiBh, 0 failed, 0 of 1 tasks
    maxseen: 0.0 GiBh, 0 failed, 0 of 1 tasks
    stokehold: 0.9 GiBh, 0 failed, 0 of 1 tasks
    ");
    let mut jump = steady;
    jump[30] = 3.5;
    insta::assert_snapshot!(said(of_peaks(&jump)), @"
    user: 193.5 GiBh, 0 failed, 0 of 1 tasks
    vpa: 19.5 GiBh, 7 failed, 1 of 1 tasks
    krr: 39.4 GiBh, 5 failed, 1 of 1 tasks
    maxseen: 26.0 GiBh, 2 failed, 1 of 1 tasks
    stokehold: 38.1 GiBh, 2 failed, 1 of 1 tasks
    ");
}

#[test]
fn few_runs_are_not_replayed() {
    let report = backtest(&[of_peaks(&[1.0; 33])], FAILURE_COST_GIB_H);
    assert!(
        report
            .policies
            .iter()
            .all(|score| score.tasks == 0 && score.waste_gib_h == 0.0)
    );
}

#[test]
fn programs_get_the_figures_under_fixed_names() {
    let score = Score {
        policy: Policy::Maxseen,
        waste_gib_h: 1.5,
        failed_attempts: 3,
        tasks_failed: 2,
        tasks: 9,
    };
    let text = serde_json::to_string(&Report {
        policies: vec![score],
    })
    .expect("JSON");
    insta::assert_snapshot!(text, @r#"{"policies":[{"policy":"maxseen","waste_gib_h":1.5,"failed_attempts":3,"tasks_failed":2,"tasks":9}]}"#);
}

#[test]
fn a_bad_file_is_told_by_its_line() {
    let row = |cells: &str| format!("{HEAD}t,1,2,3,4,5\n\n{cells}\n");
    let tables = [
        String::new(),
        "\n\n".to_owned(),
        "a,b,c\n1,2,3\n".to_owned(),
        HEAD.to_owned(),
        row("t,1"),
        row(",1,2,3,4,5"),
        row("t,1,soon,3,4,5"),
        row("t,1,-2,3,4,5"),
        row("t,1,inf,3,4,5"),
        row("t,1,2,many,4,5"),
        row("t,1,2,,4,5"),
        row("t,1,2,18446744073709551616,4,5"),
        row("t,1,2,3,x,5"),
        row("\"t,1,2,3,4,5"),
        row(&format!("t,1,{},3,4,5", "9".repeat(100) + "x")),
    ];
    let said: Vec<String> = tables
        .iter()
        .map(|text| parse(text).expect_err("a bad file").to_string())
        .collect();
    insta::assert_snapshot!(said.join("\n"), @r#"
    line 1: the file is empty
    line 1: the file is empty
    line 1: there is no column task; the first line names the columns: task,start_s,duration_s,peak_bytes,input_bytes,requested_bytes
    line 1: there is a head and no row
    line 4: duration_s is missing: there are 2 columns
    line 4: task is empty
    line 4: duration_s must be a number of 0 or more, not "soon"
    line 4: duration_s must be a number of 0 or more, not "-2"
    line 4: duration_s must be a number of 0 or more, not "inf"
    line 4: peak_bytes must be a number of 0 or more, not "many"
    line 4: peak_bytes must be a number of 0 or more, not ""
    line 4: peak_bytes is more than any machine has: "18446744073709551616"
    line 4: input_bytes must be a number of 0 or more, not "x"
    line 4: a quote is opened and not closed
    line 4: duration_s must be a number of 0 or more, not "9999999999999999999999999999999999999999..."
    "#);
}

#[test]
fn columns_are_found_by_their_names() {
    let plain = parse(&format!("{HEAD}a,9,2.5,3,4,5\nb,9,2,3.0,0,\n")).expect("a table");
    let moved = "\u{feff}extra,peak_bytes,task,duration_s,requested_bytes,input_bytes\r\nx,3,\"a\",2.5,5,4\r\n\"x,\"\"\",3,b,2,0,\r\n";
    assert_eq!(parse(moved).expect("a table"), plain);
    let fewer = parse("task,duration_s,peak_bytes\nb,2,3\n").expect("a table");
    assert_eq!(fewer.tasks[0], plain.tasks[1]);
}

proptest! {
    #[test]
    fn any_text_is_a_table_or_a_line(text in "\\PC*|(task|duration_s|peak_bytes|[0-9.,\"\n]){0,200}") {
        if let Ok(workflow) = parse(&format!("task,duration_s,peak_bytes\n{text}")) {
            backtest(&[workflow], FAILURE_COST_GIB_H);
        }
    }

    #[test]
    fn any_amounts_end(peaks in prop::collection::vec(0_u64..=1 << 60, 34..50), seconds in 0.0..1e9_f64, cost in 0.0..1e6_f64) {
        let mut text = HEAD.to_owned();
        for peak in peaks {
            let _ = writeln!(text, "t,0,{seconds},{peak},{},0", peak / 3);
        }
        for score in backtest(&[parse(&text).expect("a table")], cost).policies {
            prop_assert!(score.waste_gib_h.is_finite() && score.waste_gib_h >= 0.0, "{score:?}");
        }
    }
}
