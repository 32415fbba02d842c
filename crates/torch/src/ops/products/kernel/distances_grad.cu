const int R = $rank$; I at[R], at_y[R];
    for (int d = 0; d < R; ++d) at[d] = at_y[d] = i[d];
    T s = 0;
    const T own = (T)$own$.at(i);
    for (I k = 0; k < (I)$other$.size(R - 2); ++k) {
        at[R - 2] = k;
        at_y[R - 2] = $row$;
        at_y[R - 1] = $column$;
        const T off = own - (T)$other$.at(at), far = (T)y.at(at_y), g = (T)grad.at(at_y);
        s += $share$;
    }
    result.set_at(s, i);
