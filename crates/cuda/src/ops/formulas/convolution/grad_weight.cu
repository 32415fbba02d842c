    const I per_group = (I)w.size(1), channel = i[0] / (I)(w.size(0) / groups) * per_group + i[1];
    I places = 1, at_x[D + 2], at_y[D + 2];
    for (int d = 0; d < D; ++d) places *= (I)y.size(2 + d);
    T s = 0;
    at_x[1] = channel; at_y[1] = i[0];
    for (I n = 0; n < (I)x.size(0); ++n)
        for (I place = 0; place < places; ++place) {
            I rest = place; bool is_inside = true;
            at_x[0] = at_y[0] = n;
            for (int d = D - 1; d >= 0; --d) {
                at_y[2 + d] = rest % (I)y.size(2 + d); rest /= (I)y.size(2 + d);
                at_x[2 + d] = at_y[2 + d] * (I)stride[d] - (I)padding[d] + i[2 + d] * (I)dilation[d];
                is_inside = is_inside && at_x[2 + d] >= 0 && at_x[2 + d] < (I)x.size(2 + d);
            }
            if (is_inside) s += (T)x.at(at_x) * (T)y.at(at_y);
        }
    w.set_at(s, i);
