
    T zeros = 0, others = 1;
    for_each(j) { const T value = (T)x(j); if (value == 0) zeros += 1; else others *= value; }
    zeros = row_sum(zeros);
    others = row_product(others);
    for_each(j) {
        const T value = (T)x(j);
        grad_x.set(zeros == 0 ? (T)grad(j) * (T)y(j) / value : zeros == 1 && value == 0 ? (T)grad(j) * others : (T)0, j);
    }
