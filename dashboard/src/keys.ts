import { useEffect, useRef } from 'preact/hooks'

type Bindings = Readonly<Record<string, (event: KeyboardEvent) => void>>

/** Whoever is last is asked first. What is everywhere comes before what a view has, whichever was mounted first. */
const layers: Array<() => Bindings> = []

/** Named as `KeyboardEvent.key`. Not while somebody types or a dialog is open; Escape leaves the field. */
export function useKeys(bindings: Bindings, where: 'view' | 'everywhere' = 'view'): void {
  const current = useRef(bindings)
  current.current = bindings
  useEffect(() => {
    const layer = (): Bindings => current.current
    if (where === 'view') layers.push(layer)
    else layers.unshift(layer)
    return () => void layers.splice(layers.indexOf(layer), 1)
  }, [where])
}

export function startKeys(): void {
  document.addEventListener('keydown', (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return
    if (document.querySelector('dialog[open]') !== null) return
    const { target } = event
    if (target instanceof HTMLElement && target.matches('input, textarea, select')) {
      if (event.key === 'Escape') target.blur()
      return
    }
    // A focused link or button has its own Enter.
    if (event.key === 'Enter' && target instanceof HTMLElement && target.matches('a, button, summary')) return
    for (const layer of layers.toReversed()) {
      const binding = layer()[event.key]
      if (binding === undefined) continue
      event.preventDefault()
      return binding(event)
    }
  })
}
