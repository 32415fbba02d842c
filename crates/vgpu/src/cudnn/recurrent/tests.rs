use super::*;

fn network(words: &[i128]) -> (Network, Sequence) {
    let [cell, dtype, both, input, hidden, projection, layers, drops, algorithm, steps, batch, rows, packed] = *words else {
        panic!("{words:?}");
    };
    let network = Network {
        cell: [Cell::Plain, Cell::Plain, Cell::Lstm, Cell::Gru][cell as usize],
        biases: 2,
        directions: both + 1,
        input,
        hidden,
        outputs: if projection == 0 { hidden } else { projection },
        layers,
        element: width(dtype as c_int),
        drops: drops == 1,
        is_persistent: algorithm != 0,
    };
    (network, Sequence { steps, batch, rows, is_packed: packed == 1 })
}

#[test]
fn networks_take_what_an_h100_gave_them() {
    let (mut exact, mut count) = (0, 0);
    for line in include_str!("h100.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<i128> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let (told, recorded) = words.split_at(13);
        let (network, sequence) = network(told);
        let found =
            [network.workspace(sequence, false), network.workspace(sequence, true), network.reserve(sequence), network.weights() * network.element];
        for (found, recorded) in found.iter().zip(recorded) {
            assert!((found - recorded).abs() < 512, "{line}: {found} is not {recorded}");
            exact += usize::from(found == recorded);
            count += 1;
        }
    }
    assert!(exact * 100 >= count * 85, "{exact} of {count} are exact");
}

#[test]
fn a_descriptor_that_was_never_set_is_refused() {
    let mut bytes = 0;
    // SAFETY: a place for the size.
    unsafe {
        assert_eq!(cudnnGetRNNWeightSpaceSize(0, 8, &raw mut bytes), BAD_PARAM);
        assert_eq!(cudnnGetRNNTempSpaceSizes(0, 8, 1, 8, &raw mut bytes, std::ptr::null_mut()), BAD_PARAM);
        assert_eq!(cudnnSetRNNDescriptor_v8(8, 0, 9, 2, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0), BAD_PARAM);
        assert_eq!(cudnnSetRNNDescriptor_v8(8, 0, 2, 2, 0, 0, 0, 0, 0, 1, 1, 2, 1, 0, 0), BAD_PARAM);
    }
}

#[test]
fn weights_lie_one_after_the_other() {
    // SAFETY: numbers, which are kept.
    unsafe { cudnnSetRNNDescriptor_v8(16, 0, 2, 2, 1, 0, 0, 0, 0, 10, 6, 4, 2, 0, 0) };
    let mut handle = 0;
    // SAFETY: places for what is given.
    let mut at = |cell, gate| unsafe {
        let (mut matrix, mut bias) = (1, 1);
        super::super::handle::cudnnCreate(&raw mut handle);
        let nothing = std::ptr::null_mut();
        let status = cudnnGetRNNWeightParams(handle, 16, cell, 0, 0, gate, nothing, &raw mut matrix, nothing, &raw mut bias);
        (status, matrix / 4, bias / 4)
    };
    let first = 4 * 6 * (10 + 4) + 4 * 6;
    let second = 4 * 6 * (8 + 4) + 4 * 6;
    let biases = 2 * (first + second);
    assert_eq!(at(0, 0), (0, 0, biases));
    assert_eq!(at(0, 4), (0, 4 * 6 * 10, biases + 4 * 6));
    assert_eq!(at(0, 8), (0, 4 * 6 * 14, 0));
    assert_eq!(at(1, 1), (0, first + 6 * 10, biases + 2 * 4 * 6 + 6));
    assert_eq!(at(3, 0), (0, 2 * first + second, biases + 3 * 2 * 4 * 6));
    assert_eq!(at(4, 0).0, BAD_PARAM);
    assert_eq!(at(0, 9).0, BAD_PARAM);
}
