
    I numbers = 0;
    for_each(j) numbers += !is_nan(x(j));
    numbers = row_sum(numbers);
    const I rank = $rank$;
    I place = n;
    for_each(j) {
        bool is_it;
        if (is_nan(x(j))) is_it = rank < 0 || rank >= numbers;
        else {
            I smaller = 0, alike = 0;
            for (I i = 0; i < n; ++i) { smaller += x(i) < x(j); alike += x(i) == x(j); }
            is_it = rank >= smaller && rank < smaller + alike;
        }
        if (is_it && j < place) place = j;
    }
    place = row_min(place);
    if (is_first && n > 0) { place = place < n ? place : 0; y.set(x(place), 0); at.set((i64)place, 0); }
