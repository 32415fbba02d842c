const i64 begin = between(offsets.flat(i[0]), indices.count() + 1), all = indices.count();
    i64 end = (i64)i[0] + 1 < offsets.count() ? offsets.flat(i[0] + 1) : all; if (end > all) end = all;
    T sum = 0; i64 count = 0, row = -1; (void)row;
    for (i64 j = begin; j < end; ++j) {
        const i64 at = wrapped(indices.flat(j), weight.size(0));
        if (at == padding) continue;
        const T value = (T)weight(at, i[1])$scale$;
        $take$ ++count;
    }
    $finish$
    bags.set_at(sum, i);
    if (i[1] == 0) sizes.set(count, i[0]);
