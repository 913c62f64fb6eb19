import type { ComponentChildren } from 'preact'
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { useKeys } from '../keys.ts'
import { go } from '../router.ts'

/** Rows kept ready above and below what can be seen. */
const SPARE_ROWS = 10
const NEAR_END_ROWS = 60

/** Where a list was left, for when somebody comes back to it. */
export interface Spot {
  top: number
  selected: number
  key?: string | undefined
}

export interface VirtualListProps<T> {
  readonly label: string
  readonly rows: readonly T[]
  readonly rowPx: number
  readonly rowKey: (row: T) => string
  readonly rowHref?: (row: T) => string | undefined
  /** Its first link gets the focus when the row is chosen by key. */
  readonly children: (row: T) => ComponentChildren
  readonly foot?: ComponentChildren
  readonly spot?: Spot
  readonly onNearEnd?: () => void
  /** When somebody wants to see the end and more could be loaded first. */
  readonly onEnd?: () => Promise<void>
}

/** However long the list, only what can be seen is in the document. All rows are `rowPx` high. */
export function VirtualList<T>(props: VirtualListProps<T>) {
  const { label, rows, rowPx, rowKey, children, foot, onNearEnd } = props
  const [ownSpot] = useState<Spot>({ top: 0, selected: -1 })
  const { spot = ownSpot } = props
  const box = useRef<HTMLDivElement>(null)
  const [view, setView] = useState({ top: spot.top, px: 0 })
  const [, setSelected] = useState(spot.selected)
  const selected = followed(spot, rows, rowKey)
  const wantsFocus = useRef(false)
  const current = useRef(rows)
  current.current = rows

  useLayoutEffect(() => {
    const { current: element } = box
    if (element === null) return
    element.scrollTop = spot.top
    const measure = (): void => setView({ top: element.scrollTop, px: element.clientHeight })
    measure()
    const observer = new ResizeObserver(measure)
    observer.observe(element)
    return () => observer.disconnect()
  }, [])

  const first = Math.max(0, Math.floor(view.top / rowPx) - SPARE_ROWS)
  const end = Math.min(rows.length, Math.ceil((view.top + view.px) / rowPx) + SPARE_ROWS)
  const isNearEnd = end >= rows.length - NEAR_END_ROWS
  useEffect(() => {
    if (isNearEnd) onNearEnd?.()
  }, [isNearEnd, rows.length])

  // Only now, because the rows that somebody wants to see may have come with this very rendering.
  useLayoutEffect(() => {
    const { current: element } = box
    if (!wantsFocus.current || element === null || selected >= rows.length) return
    wantsFocus.current = false
    const top = selected * rowPx
    if (top < element.scrollTop) element.scrollTop = top
    else if (top + rowPx > element.scrollTop + element.clientHeight) {
      element.scrollTop = top + rowPx - element.clientHeight
    }
    setView({ top: element.scrollTop, px: element.clientHeight })
    element.querySelector<HTMLElement>(`[data-index="${selected}"] :is(a, button)`)?.focus({ preventScroll: true })
  })

  const choose = (index: number): void => {
    spot.selected = index
    const { [index]: row } = current.current
    spot.key = row && rowKey(row)
    setSelected(index)
  }
  const select = (index: number): void => {
    const { length } = current.current
    if (length === 0) return
    wantsFocus.current = true
    choose(Math.min(length - 1, Math.max(0, index)))
  }
  useKeys(listKeys(props, selected, Math.max(1, Math.floor(view.px / rowPx) - 1), select))

  const indexes = Array.from({ length: Math.max(0, end - first) }, (_, i) => first + i)
  // The chosen row stays, or the focus would be lost with it.
  if (selected >= 0 && selected < rows.length && (selected < first || selected >= end)) indexes.push(selected)
  return (
    <div
      class="list"
      ref={box}
      onScroll={({ currentTarget: { scrollTop, clientHeight } }) => {
        spot.top = scrollTop
        setView({ top: scrollTop, px: clientHeight })
      }}
    >
      <ol aria-label={label} style={{ height: `${rows.length * rowPx}px` }}>
        {indexes.map((index) => {
          const row = rows[index]
          if (row === undefined) return null
          return (
            <li
              key={rowKey(row)}
              data-index={index}
              class={index === selected ? 'row selected' : 'row'}
              aria-setsize={rows.length}
              aria-posinset={index + 1}
              style={{ top: `${index * rowPx}px`, height: `${rowPx}px` }}
              onFocusIn={() => choose(index)}
            >
              {children(row)}
            </li>
          )
        })}
      </ol>
      {foot}
    </div>
  )
}

/** Where the chosen row is now: others may have come before it. A row that has gone leaves its place to the next one. */
function followed<T>(spot: Spot, rows: readonly T[], rowKey: (row: T) => string): number {
  const { [spot.selected]: row } = rows
  if (spot.key === undefined || (row !== undefined && rowKey(row) === spot.key)) return spot.selected
  const found = rows.findIndex((other) => rowKey(other) === spot.key)
  if (found >= 0) spot.selected = found
  else spot.key = row && rowKey(row)
  return spot.selected
}

function listKeys<T>(
  { rows, rowHref, onEnd }: VirtualListProps<T>,
  selected: number,
  page: number,
  select: (index: number) => void,
) {
  const down = () => select(selected + 1)
  const up = () => select(selected < 0 ? 0 : selected - 1)
  const row = rows[selected]
  const href = row === undefined ? undefined : rowHref?.(row)
  return {
    j: down,
    ArrowDown: down,
    k: up,
    ArrowUp: up,
    PageDown: () => select(selected + page),
    PageUp: () => select(selected - page),
    Home: () => select(0),
    End: () => void Promise.resolve(onEnd?.()).then(() => select(Number.POSITIVE_INFINITY)),
    ...(href !== undefined && { Enter: () => go(href) }),
  }
}

const NARROW = matchMedia('(max-width: 760px)')

/** Whether rows have two lines, and no columns. */
export function useNarrow(): boolean {
  const [isNarrow, setNarrow] = useState(NARROW.matches)
  useEffect(() => {
    const look = (): void => setNarrow(NARROW.matches)
    NARROW.addEventListener('change', look)
    return () => NARROW.removeEventListener('change', look)
  }, [])
  return isNarrow
}
