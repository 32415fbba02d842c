    const I per_group = (I)w.size(1), first = i[1] / (I)(w.size(0) / groups) * per_group;
    I taps = 1, at_x[D + 2], at_w[D + 2];
    for (int d = 0; d < D; ++d) taps *= (I)w.size(2 + d);
    T s = 0;
    at_x[0] = i[0]; at_w[0] = i[1];
    for (I tap = 0; tap < taps; ++tap) {
        I rest = tap; bool is_inside = true;
        for (int d = D - 1; d >= 0; --d) {
            at_w[2 + d] = rest % (I)w.size(2 + d); rest /= (I)w.size(2 + d);
            at_x[2 + d] = i[2 + d] * (I)stride[d] - (I)padding[d] + at_w[2 + d] * (I)dilation[d];
            is_inside = is_inside && at_x[2 + d] >= 0 && at_x[2 + d] < (I)x.size(2 + d);
        }
        for (I c = 0; is_inside && c < per_group; ++c) {
            at_x[1] = first + c; at_w[1] = c;
            s += (T)x.at(at_x) * (T)w.at(at_w);
        }
    }
    y.set_at(s, i);
