//! Plans for a target: how many micro-steps of which size.

use super::script::*;
use crate::probe::Evidence;

#[test]
fn a_target_is_met_exactly_with_the_fewest_steps() {
    let mut question = question();
    question.request.to_mut().target_batch = Some(1024);

    let found = fit(&question, &mut Script::new(Evidence::Simulated), None).recommendation;

    assert_eq!((found.micro_batch, found.accumulation_steps), (64, 16));
    assert_eq!((found.global_batch, found.shortfall), (1024, 0));
}

#[test]
fn a_plan_that_does_not_fit_with_accumulation_is_not_recommended() {
    let mut question = question();
    question.request.to_mut().target_batch = Some(1024);
    let mut simulated = Script::new(Evidence::Simulated);
    simulated.accumulating = 500;

    let found = fit(&question, &mut simulated, None).recommendation;

    // Accumulating steps fit up to 50; 32 is the largest divisor of 1024 below.
    assert_eq!((found.micro_batch, found.accumulation_steps), (32, 32));
    assert_eq!((found.max_batch, found.max_batch_without_retries), (60, 50));
}

#[test]
fn the_maxima_of_an_answer_are_measured_with_its_accumulation() {
    for (target, accumulation) in [(None, 3), (Some(144), 1), (Some(1024), 1)] {
        let mut question = question();
        question.request.to_mut().target_batch = target;
        question.request.to_mut().variants[0].accumulation = accumulation;
        let mut simulated = Script::new(Evidence::Simulated);
        simulated.accumulating = 300;

        let found = fit(&question, &mut simulated, None).recommendation;

        assert!(found.accumulation_steps > 1);
        assert_eq!((found.max_batch, found.max_batch_without_retries), (80, 70));
        assert!(found.micro_batch <= 68, "{found:?}");
    }
}

#[test]
fn a_divisor_below_half_of_the_maximum_makes_the_target_too() {
    let mut question = question();
    let mut simulated = Script::new(Evidence::Simulated);
    simulated.holes = (32..=80).collect();
    question.request.to_mut().target_batch = Some(1024);

    let found = fit(&question, &mut simulated, None).recommendation;

    assert_eq!(
        (found.micro_batch, found.accumulation_steps, found.shortfall),
        (16, 64, 0)
    );
}

#[test]
fn a_prime_target_is_nearly_met_in_few_steps_and_told_how_to_meet_it() {
    let mut question = question();
    question.request.to_mut().target_batch = Some(1009);

    let found = fit(&question, &mut Script::new(Evidence::Simulated), None).recommendation;

    assert_eq!(
        (found.micro_batch, found.accumulation_steps, found.shortfall),
        (84, 12, 1)
    );
    let exactly = found.exactly.unwrap();
    assert_eq!((exactly.micro_batch, exactly.accumulation_steps), (1, 1009));
    assert_eq!(exactly.last_micro_batch, 1);
}

#[test]
fn where_accumulation_does_not_fit_one_step_comes_closest() {
    let mut question = question();
    question.request.to_mut().target_batch = Some(1024);
    let mut simulated = Script::new(Evidence::Simulated);
    simulated.accumulating = 2000;

    let found = fit(&question, &mut simulated, None).recommendation;

    assert_eq!(
        (found.micro_batch, found.accumulation_steps, found.shortfall),
        (98, 1, 926)
    );
    assert_eq!(found.max_batch_without_retries, 100);
}

#[test]
fn a_target_that_takes_more_steps_than_there_may_be_is_missed_and_says_so() {
    let mut question = question();
    // A prime: exact only one sample at a time.
    question.request.to_mut().target_batch = Some(65_537);
    let mut simulated = Script::new(Evidence::Simulated);

    let found = fit(&question, &mut simulated, None).recommendation;

    assert_eq!(
        (found.micro_batch, found.accumulation_steps, found.shortfall),
        (64, 1024, 1)
    );
    let note = "no micro-batch that fits makes the target exactly in at most 65536 accumulation steps, the most that \
                batchfit plans";
    assert!(
        found.notes.iter().any(|known| known == note),
        "{:?}",
        found.notes
    );
}

#[test]
fn three_real_probes_confirm_a_plan_with_accumulation() {
    let mut question = question();
    question.request.to_mut().target_batch = Some(1024);
    let mut simulated = Script::new(Evidence::Simulated);
    let mut real = Script::new(Evidence::Probed);
    (simulated.accumulating, real.accumulating) = (500, 500);

    let found = fit(&question, &mut simulated, Some(&mut real)).recommendation;

    assert_eq!(real.asked, [(4, 50), (4, 51), (4, 32)]);
    assert_eq!((found.micro_batch, found.accumulation_steps), (32, 32));
    assert_eq!(
        (found.max_batch_without_retries, found.evidence),
        (50, Evidence::Probed)
    );
}

#[test]
fn a_gpu_that_refuses_a_plan_is_given_another() {
    let mut question = question();
    question.request.to_mut().target_batch = Some(1024);
    let mut simulated = Script::new(Evidence::Simulated);
    let mut real = Script::new(Evidence::Probed);
    (simulated.accumulating, real.accumulating) = (300, 500);

    let found = fit(&question, &mut simulated, Some(&mut real)).recommendation;

    assert_eq!(
        (found.micro_batch, found.accumulation_steps, found.shortfall),
        (32, 32, 0)
    );
    assert_eq!(found.max_batch_without_retries, 50);
    assert!(real.asked.len() <= 20, "{:?}", real.asked);
}
