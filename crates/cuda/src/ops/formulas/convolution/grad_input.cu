    const I per_group = (I)w.size(1), outputs = (I)(w.size(0) / groups), first = i[1] / per_group * outputs;
    I taps = 1, at_y[D + 2], at_w[D + 2];
    for (int d = 0; d < D; ++d) taps *= (I)w.size(2 + d);
    T s = 0;
    at_y[0] = i[0]; at_w[1] = i[1] % per_group;
    for (I tap = 0; tap < taps; ++tap) {
        I rest = tap; bool is_inside = true;
        for (int d = D - 1; d >= 0; --d) {
            at_w[2 + d] = rest % (I)w.size(2 + d); rest /= (I)w.size(2 + d);
            const I from = i[2 + d] + (I)padding[d] - at_w[2 + d] * (I)dilation[d];
            at_y[2 + d] = from / (I)stride[d];
            is_inside = is_inside && from >= 0 && from % (I)stride[d] == 0 && at_y[2 + d] < (I)y.size(2 + d);
        }
        for (I k = 0; is_inside && k < outputs; ++k) {
            at_y[1] = at_w[0] = first + k;
            s += (T)y.at(at_y) * (T)w.at(at_w);
        }
    }
    x.set_at(s, i);
